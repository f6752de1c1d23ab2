"""Makes the notebook of the quickstart from its page: `python docs/site/make_notebook.py`, after changing the page.

Python blocks become cells of code, everything else becomes cells of text.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent
PAGE, NOTEBOOK = DOCS / "quickstart.md", DOCS / "quickstart.ipynb"


def cell(kind: str, text: str, number: int) -> dict[str, Any]:
    """A cell of the notebook."""
    made = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text.strip().splitlines(True)}
    return made | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def notebook(page: str) -> str:
    """The page as the JSON of a notebook."""
    parts = re.split(r"```python\n(.*?)```", page, flags=re.DOTALL)
    kinds = ("markdown", "code")
    cells = [cell(kinds[number % 2], part, number) for number, part in enumerate(parts) if part.strip()]
    metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    made = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
