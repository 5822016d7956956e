"""A site whose data have changed since its run began: it says so and is left out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from deployment import NAMES, Deployed, DirectTransport, play_round
from feddrm.data import Federation

pytestmark = pytest.mark.slow

Make = Callable[..., Deployed]


def test_more_samples_than_the_run_began_with(deployed: Make) -> None:
    deployment = deployed(router=False)
    sizes = deployment.server().run_spec().sizes
    deployment.give_share("lima", 2)
    assert sizes[1] != sizes[2]
    assert play_round(deployment.server()).history[-1]["answered"] == ["oslo", "pune"]
    assert deployment.complaints == [
        f"lima: holds {sizes[2]} samples, this run began with {sizes[1]}: put them back, or start a new run"
    ]


@pytest.fixture
def arrays(deployed: Make) -> Callable[[Callable[..., Any]], Deployed]:
    """Sites with arrays of their own; those of lima are changed after a first round."""

    def make(change: Callable[..., Any]) -> Deployed:
        deployment = deployed(router=False, training={"model": "mlp"})
        draw = np.random.default_rng(3)
        for name in NAMES:
            path = deployment.site_folder(name) / "own.npz"
            np.savez(path, x=draw.normal(size=(30, 4)).astype(np.float32), y=[0, 1, 2] * 10)
            deployment.change_site(name, data={"npz": "own.npz"})
        assert play_round(deployment.server()).history[-1]["answered"] == list(NAMES)
        path = deployment.site_folder("lima") / "own.npz"
        with np.load(path) as before:
            np.savez(path, **dict(zip("xy", change(before["x"], before["y"]), strict=True)))
        deployment.restart_sites()
        return deployment

    return make


CHANGES: dict[str, tuple[Callable[..., Any], str]] = {
    "a value": (lambda x, y: (x + (np.arange(x.size).reshape(x.shape) == 7), y), "holds other samples than this run"),
    "every value": (lambda x, y: (x + 1, y), "holds other samples than this run began with (their checksum differs)"),
    "labels": (lambda x, y: (x, y[::-1]), "holds other samples than this run began with"),
    "shape": (lambda x, y: (x[:, :3], y), "holds samples of shape (3,), this run began with (4,)"),
    "class": (lambda x, y: (x, y + (np.arange(30) == 4) * 8), "holds class '9', which this run began without: take"),
    "fewer": (lambda x, y: (x[:20], y[:20]), "samples, this run began with"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_other_samples_than_the_run_began_with(what: str, arrays: Callable[[Any], Deployed]) -> None:
    change, reason = CHANGES[what]
    deployment = arrays(change)
    assert play_round(deployment.server()).history[-1]["answered"] == ["oslo", "pune"]
    (complaint,) = deployment.complaints
    assert complaint.startswith("lima: holds ")
    assert reason in complaint
    assert complaint.endswith(", or start a new run")


def test_the_same_samples_in_a_new_file_are_accepted(arrays: Callable[[Any], Deployed]) -> None:
    deployment = arrays(lambda x, y: (x, y))
    assert play_round(deployment.server()).history[-1]["answered"] == list(NAMES)
    assert not deployment.complaints


def test_a_new_run_may_have_other_samples(arrays: Callable[[Any], Deployed]) -> None:
    """Also under the old name, if the server begins it again."""
    deployment = arrays(lambda x, y: (x + 1, y))
    for path in deployment.run.iterdir():
        path.unlink()
    for _ in range(2):
        assert play_round(deployment.server()).history[-1]["answered"] == list(NAMES)
        deployment.restart_sites()


def test_the_checksum_is_computed_once_and_never_sent(
    arrays: Callable[[Any], Deployed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once per start of a site, even if the site refuses every message."""
    deployment = arrays(lambda x, y: (x + 1, y))
    computed: list[tuple[str, ...]] = []
    digest = Federation.digest

    def counted(self: Federation) -> str:
        computed.append(self.names)
        return digest(self)

    monkeypatch.setattr(Federation, "digest", counted)
    transport = DirectTransport(deployment.folder)
    server = deployment.server(transport)
    for _ in range(3):
        play_round(server)
    assert len(computed) == len(NAMES)
    checksums = [(deployment.site_folder(n) / "runs" / "first" / "samples.sha256").read_bytes() for n in NAMES]
    assert all(len(checksum) == 64 for checksum in checksums)
    assert not [way for way, _, content in transport.messages if any(checksum in content for checksum in checksums)]


def test_a_site_that_lost_its_checksum_continues(arrays: Callable[[Any], Deployed]) -> None:
    """Nobody knows what the run began with, so the present samples count."""
    deployment = arrays(lambda x, y: (x + 1, y))
    (deployment.site_folder("lima") / "runs" / "first" / "samples.sha256").unlink()
    for _ in range(2):
        assert play_round(deployment.server()).history[-1]["answered"] == list(NAMES)
        deployment.restart_sites()


def test_the_checksum_is_the_one_that_older_versions_stored(arrays: Callable[[Any], Deployed]) -> None:
    """Or a site would refuse to continue its run after an update. The other clients count with one blank sample."""
    deployment = arrays(lambda x, y: (x, y))
    dataset = deployment.site("lima").dataset
    own, blank = dataset.client(dataset.classes), (torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64)) * 2
    expected = hashlib.sha256(json.dumps([NAMES, dataset.classes, None]).encode())
    for tensors in (blank, (own.train.x, own.train.y, own.test.x, own.test.y), blank):
        for tensor in tensors:
            expected.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
    path = deployment.site_folder("lima") / "runs" / "first" / "samples.sha256"
    assert path.read_text() == expected.hexdigest()
