"""What a site tells the server when its disk fails: what and why, never where its files are."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from deployment import Deployed, play_round
from feddrm.deploy.cluster_status import site_status
from feddrm.deploy.site.without_places import without_places
from feddrm.io import atomic


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cannot write /srv/oslo/runs/first/private-2.safetensors (No space left)", None),
        ("the plugin /home/eva/own.py failed: correct it", "the plugin own.py failed: correct it"),
        ("'/data/a/b.csv': no such file, '/data/c'.", "'b.csv': no such file, 'c'."),
        ("cannot read /srv/dr smith/old data/my file.csv: gone", "cannot read my file.csv: gone"),
        ("/data/a/b.csv and /data/c differ", "b.csv and c differ"),
        ("/srv/oslo holds no private part", "its folder holds no private part"),
        ("train/test, 1/2 of http://127.0.0.1:80/x, a - /", "train/test, 1/2 of http://127.0.0.1:80/x, a - /"),
    ],
)
def test_paths_lose_their_folders(text: str, said: str | None) -> None:
    expected = said or "cannot write runs/first/private-2.safetensors (No space left)"
    assert without_places(text, Path("/srv/oslo")) == expected


def test_a_full_disk_of_a_site_is_told_without_its_path(
    deployed: Callable[..., Deployed], monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = deployed(few=True, router=False)
    server = deployment.server()
    server.run_spec()
    sync, place = os.fsync, str(deployment.site_folder("lima"))

    def full(number: int) -> None:
        if Path(f"/proc/self/fd/{number}").readlink().is_relative_to(f"{place}/runs"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(number)

    monkeypatch.setattr(atomic.os, "fsync", full)
    reason = play_round(server).history[-1]["missing"]["lima"]
    assert reason.startswith("refused: cannot write runs/first/")
    assert "No space left on device" in reason
    assert not [text for text in [reason, *deployment.complaints] if str(deployment.folder) in text]
    assert f"{place}/runs" in site_status(deployment.site_folder("lima"))["message"]["error"], "its own people see it"
