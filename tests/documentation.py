"""The code blocks of the documentation, for the tests that run them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parent.parent


def blocks(page: str, *kinds: str) -> list[tuple[str, str]]:
    """The kind and the text of every block of these kinds (``console``, ``python``, ...), in the page's order."""
    return re.findall(rf"```({'|'.join(kinds)})\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def command_words(page: str) -> list[list[str]]:
    """The words of every command in the page's console blocks."""
    return [shlex.split(line) for _, body in blocks(page, "console") for line in body.splitlines()]
