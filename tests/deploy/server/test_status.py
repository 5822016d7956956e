"""The server's status files."""

from __future__ import annotations

from pathlib import Path

from feddrm.deploy.server.status import ServerStatus, last_complaint, read_status


def test_the_last_status_is_read_back(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    status = ServerStatus(tmp_path)
    status.record("waiting", {"round": 0, "for": "lima"})
    status.record("training", {"round": 1, "answered": ["Zürich"]})
    status.record("complaint", {"text": "oslo is unwell"})
    current = read_status(tmp_path)
    assert current is not None
    assert current.pop("time") > 0
    assert current == {"what": "training", "round": 1, "answered": ["Zürich"]}


def test_a_complaint_is_logged_once_and_a_failure_every_time(tmp_path: Path) -> None:
    """Also if two sites complain in turns."""
    assert last_complaint(tmp_path) is None
    status = ServerStatus(tmp_path)
    for _ in range(3):
        for name in ("oslo", "lima"):
            status.record("complaint", {"text": f"{name} is unwell"})
    assert (tmp_path / "complaints.log").read_text().count("\n") == 2
    for _ in range(2):
        status.record("failed", {"text": "the run failed"})
    assert (tmp_path / "complaints.log").read_text().count("\n") == 4
    assert (last_complaint(tmp_path) or "").endswith(" the run failed")
