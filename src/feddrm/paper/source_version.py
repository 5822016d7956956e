"""Which source code ran: the git commit and a hash of the package's files."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


@lru_cache(maxsize=1)
def commit() -> str | None:
    """The commit of the source tree, read without git; None if there is no repository.

    ``FEDDRM_COMMIT`` overrides it, for a copy of the tree that has changed since its commit.
    """
    if override := os.environ.get("FEDDRM_COMMIT"):
        return override
    for folder in PACKAGE.parents:
        if (folder / ".git").exists():
            return read_head(folder / ".git")
    return None


def read_head(git: Path) -> str | None:
    """The commit that a ``.git`` folder, or the ``.git`` file of a worktree, has checked out."""
    try:
        if git.is_file():  # a worktree has a HEAD of its own and shares the branches of the main one
            git = (git.parent / git.read_text().removeprefix("gitdir:").strip()).resolve()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
            return head
        ref = head.removeprefix("ref:").strip()
        common = git / "commondir"
        main = (git / common.read_text().strip()).resolve() if common.exists() else git
        if (main / ref).exists():
            return (main / ref).read_text().strip()
        packed = (main / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {ref}")), None)
    except OSError:
        return None


@lru_cache(maxsize=1)
def source_hash() -> str:
    """Twelve digits of the SHA-256 of the package's Python files: identifies the code even without git."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
