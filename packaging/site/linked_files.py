"""Links between files of the repository, as the site has them: a file outside docs/ is published if a page names it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INDEX = "README.md"  # MkDocs, like GitHub, shows it for its folder
# A code block, which is passed over, or the target of a link to a file.
_BLOCK_OR_LINK = re.compile(
    r"^ *(?P<fence>```|~~~).*?^ *(?P=fence)|(?<=\]\()(?P<link>[^)#\s:]+)(?=[)#])", flags=re.MULTILINE | re.DOTALL
)


def links(source: Path) -> list[str]:
    """The files that a Markdown file links to, as it writes them."""
    return [match["link"] for match in _BLOCK_OR_LINK.finditer(source.read_text()) if match["link"]]


def place(path: Path) -> str:
    """Where the site has a file or a folder of the repository."""
    if path == ROOT / INDEX:
        return "index.md"  # the site's first page stands for the README
    uri = path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).as_posix()
    if path.is_dir():
        return f"{uri}/{INDEX}"
    return uri.removesuffix(".ipynb") + ".md" if path.suffix == ".ipynb" else uri


def outside(sources: Iterable[Path]) -> set[Path]:
    """What Markdown files name outside docs/, and what that names in turn; folders with all their files."""
    found: set[Path] = set()
    waiting = list(sources)
    while waiting:
        source = waiting.pop()
        named = {(source.parent / link).resolve() for link in links(source)} - {ROOT / INDEX}
        named = {path.parent if path.name == INDEX else path for path in named if path.exists()}
        for folder in {path for path in named if path.is_dir()}:
            named |= {path for path in folder.iterdir() if path.is_file()}
        new = {path for path in named - found if path.is_relative_to(ROOT)}
        new = {path for path in new if path.is_dir() or not path.is_relative_to(DOCS)}
        found |= new
        waiting += [path for path in new if path.suffix == ".md"]
    return {path for path in found if path.name != INDEX}


def folder_page(folder: Path) -> str:
    """The page of a folder: its README, if it has one, and a list of its files."""
    readme = folder / INDEX
    head = readme.read_text() if readme.exists() else f"# {folder.relative_to(ROOT).as_posix()}\n"
    files = sorted(path for path in folder.iterdir() if path.is_file() and path != readme)
    return head + "\n" + "\n".join(f"- [{_title(path)}]({path.name})" for path in files) + "\n"


def _title(path: Path) -> str:
    """The title of a Markdown file; the name of any other."""
    return path.read_text().partition("\n")[0].lstrip("# ") if path.suffix == ".md" else path.name


def rewritten(markdown: str, source: Path) -> str:
    """The text of a file with links to the site's places. A link to nothing stays: MkDocs reports it."""
    home = posixpath.dirname(place(source)) or "."

    def link(match: re.Match[str]) -> str:
        path = (source.parent / (match["link"] or "")).resolve()
        if not match["link"] or not path.exists() or not path.is_relative_to(ROOT):
            return match[0]
        return posixpath.relpath(place(path), home)

    return _BLOCK_OR_LINK.sub(link, markdown)
