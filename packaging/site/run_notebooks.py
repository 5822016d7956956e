"""Run the notebooks of docs/ and keep what they print and draw: python packaging/site/run_notebooks.py."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from linked_files import DOCS

EXECUTED = "executed"  # the notebook's note of the code whose outputs it has


def code_digest(notebook: nbformat.NotebookNode) -> str:
    """A checksum of all code, in order."""
    code = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return hashlib.sha256(code.encode()).hexdigest()


def run(path: Path) -> None:
    """Run one notebook from its first cell and write it back, without times and names of this machine."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=300, kernel_name="python3", record_timing=False).execute(cwd=str(path.parent))
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.metadata[EXECUTED] = code_digest(notebook)
    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    for path in sorted(DOCS.glob("notebooks/*.ipynb")):
        print(path.name, file=sys.stderr)
        run(path)
