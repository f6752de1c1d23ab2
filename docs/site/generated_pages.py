"""Pages of the documentation site that are made from files outside `docs/`, and links to these files.

A text has one place: README.md is the home page, SECURITY.md the page on security, and so on. Links stay as they are in
the repository, where they lead to files; here they are changed to lead to pages. The page on promises is made from
`tests/promises.py` and from the tests that are marked with a promise.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent.parent
PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "bench/README.md": "benchmark-methods.md",
    "examples/README.md": "examples.md",
    "tests/promises.py": "promises.md",
}
SOURCES = {page: source for source, page in PAGES.items()}
LINK = re.compile(r"(\]\(|(?:src|href|srcset)=\")(?!\w+:|#|/)([^)#\"\s]+)")
PROMISES = """# Promises

What smolmem promises about your data, and the tests that hold the code to it. A promise without a test, or a test of a
promise that does not exist, fails the test suite. `make torture` runs the same tests for hours, with many more cases;
the [torture report](torture.md) says what ran.
"""


ICON = ROOT / "src/smolmem/inspector/static/icon.svg"


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages, and the icon."""
    for source, page in PAGES.items():
        text = promises_page() if source.endswith(".py") else (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, ICON.name, abs_src_path=str(ICON)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Changes links between files of the repository to links between pages."""
    uri = page.file.src_uri
    folder = posixpath.dirname(SOURCES.get(uri, f"docs/{uri}"))
    if uri == "promises.md":
        return markdown
    return LINK.sub(lambda link: link[1] + page_of(link[2], folder, uri), markdown)


def page_of(target: str, folder: str, uri: str) -> str:
    """The page, or the file of the site, that shows a file of the repository."""
    path = posixpath.normpath(posixpath.join(folder, target))
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    raise PluginError(f"{uri} links to {path}, which no page of the site shows: see PAGES in {Path(__file__).name}.")


def promises_page() -> str:
    """Each promise with the tests that are marked with it."""
    tests = marked_tests()
    lines = [PROMISES]
    for name, promise in promises().items():
        lines.append(f"## {name} {{#{name.lower()}}}\n\n{promise}\n")
        lines += [f"- {sentence} ({file})" for file, sentence in sorted(tests[name])]
        lines.append("")
    return "\n".join(lines)


def promises() -> dict[str, str]:
    """The promises, by id."""
    for node in ast.parse((ROOT / "tests/promises.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "PROMISES":
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    raise PluginError("tests/promises.py has no PROMISES.")


def marked_tests() -> dict[str, set[tuple[str, str]]]:
    """The file and the name of each test, as a sentence, by the promise that the test is marked with."""
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for file in sorted((ROOT / "tests").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                sentence = node.name.removeprefix("test_").replace("_", " ")
                for name in re.findall(r"mark\.promise\('(\w+)'\)", "".join(map(ast.unparse, node.decorator_list))):
                    found[name].add((f"`tests/{file.name}`", sentence))
    return found
