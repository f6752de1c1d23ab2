"""Metadata of the package that depends on where the repository is: `repository` in pyproject.toml, empty for nowhere.

A package index shows README.md without the files beside it. So links to files become links to the repository there,
and the addresses of the project are listed beside the description.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)([^)\s]+)\)")
PAGES = {"Documentation": "docs/quickstart.md", "Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}


def absolute_links(text: str, repository: str) -> str:
    """A text whose links to files are links to a repository; pictures are linked as they are."""
    kinds = {"": "blob", "!": "raw"}
    return LINK.sub(lambda link: f"{link[1]}[{link[2]}]({repository}/{kinds[link[1]]}/HEAD/{link[3]})", text)


class RepositoryLinks(MetadataHookInterface):
    """Sets the description and the addresses."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling while it builds the package."""
        repository = self.config["repository"].rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if repository:
            text = absolute_links(text, repository)
            pages = {name: f"{repository}/blob/HEAD/{path}" for name, path in PAGES.items()}
            metadata["urls"] = {"Repository": repository, "Issues": f"{repository}/issues"} | pages
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
