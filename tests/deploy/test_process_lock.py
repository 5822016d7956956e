"""The lock of a server's or a site's folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from feddrm.deploy.process_lock import LOCK, only_process, running
from full_disk import no_room
from refusal import refused


def test_two_that_look_at_once_do_not_see_a_process_that_has_ended(tmp_path: Path) -> None:
    """Its number may be that of another process by now, and 'down' would end that."""
    with only_process(tmp_path):
        pass
    with (tmp_path / LOCK).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert running(tmp_path) is None


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with no_room(), refused(f"cannot write {tmp_path / LOCK}", "free the disk"), only_process(tmp_path):
        pass
    assert running(tmp_path) is None
    with only_process(tmp_path) as mark_ready, no_room(), refused("cannot write", "free the disk"):
        mark_ready()


def test_one_process_holds_a_folder_and_is_ready_when_it_says_so(tmp_path: Path) -> None:
    assert running(tmp_path) is None
    with only_process(tmp_path) as mark_ready:
        assert running(tmp_path) == os.getpid()
        assert running(tmp_path, ready=True) is None
        mark_ready()
        assert running(tmp_path, ready=True) == running(tmp_path) == os.getpid()
        with refused("already running", "feddrm deploy down"), only_process(tmp_path):
            pass
    assert running(tmp_path) is None
    with only_process(tmp_path):
        assert running(tmp_path, ready=True) is None  # nothing is left of the process before
