"""Tests of reading the commit of the source tree."""

from __future__ import annotations

from pathlib import Path

from feddrm.paper.source_version import read_head


def test_commits_are_read_without_git(tmp_path: Path) -> None:
    git = tmp_path / "main" / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/x\n")
    assert read_head(git) is None
    (git / "packed-refs").write_text("# pack-refs\nabc refs/heads/y\ndef refs/heads/x\n")
    assert read_head(git) == "def"
    (git / "refs" / "heads" / "x").write_text("123\n")
    assert read_head(git) == "123"
    tree = git / "worktrees" / "w"
    tree.mkdir(parents=True)
    (tree / "HEAD").write_text("ref: refs/heads/x")
    (tree / "commondir").write_text("../..\n")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / ".git").write_text(f"gitdir: {tree}\n")
    assert read_head(tmp_path / "w" / ".git") == "123"
    (tree / "HEAD").write_text("456\n")
    assert read_head(tmp_path / "w" / ".git") == "456"
