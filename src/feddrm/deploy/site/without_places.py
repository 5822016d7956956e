"""Errors that leave a site: without the places of its files, which tell of its machine and of its users."""

from __future__ import annotations

import re
from pathlib import Path

END = r"\s'\",;()"  # what ends a path, but for a blank within the name of a folder
FOLDER = rf"[^/{END}]+(?: [^/:{END}]+)*/"
ABSOLUTE = re.compile(rf"(?<![\w.:/-])/+(?:{FOLDER})*[^{END}]*[^:.{END}]")


def without_places(text: str, folder: Path) -> str:
    """The text with paths relative to the site's ``folder``; of any other absolute path the file's name stays."""
    relative = text.replace(f"{folder}/", "").replace(str(folder), "its folder")
    return ABSOLUTE.sub(lambda path: path[0].rpartition("/")[2], relative)
