"""What a site refuses, whatever its server has signed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from feddrm.deploy.flower import site_at
from feddrm.deploy.letters import Letter, opened, pack, seal, unpack

from .conftest import Deployed

Make = Callable[..., Deployed]


def asked(deployment: Deployed, kind: str, brief: dict[str, Any], **header: Any) -> Letter:
    """What oslo answers to a letter that the server signed: a first round, or the end after none."""
    server = deployment.server()
    agreed = server._brief()
    shared = server._progress(agreed, agreed.make_method()).shared
    letter = pack({"kind": kind, "to": "oslo", "brief": brief, "round": 1, "after": 0, **header}, shared)
    answer = site_at(str(deployment.folder / "sites" / "oslo")).handle(seal(letter, server.post.key))
    return unpack(opened(answer, server.post.site_keys["oslo"], "oslo"))


@pytest.mark.parametrize("run", ["../../../../pwn", "", "a/b", "/tmp/pwn", 7])
@pytest.mark.parametrize("kind", ["train", "finish", "fit"])
def test_a_run_that_would_leave_the_sites_folder(run: Any, kind: str, deployed: Make) -> None:
    deployment = deployed(router=False)
    agreed = deployment.server()._brief().as_dict()
    before = sorted(deployment.folder.parent.rglob("*"))
    answer = asked(deployment, kind, {**agreed, "run": run})
    assert answer.header["error"] == f"run {run!r} names folders: use letters, digits, '-' or '_'"
    assert not answer.tensors
    assert sorted(deployment.folder.parent.rglob("*")) == before
