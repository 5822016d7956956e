"""A site whose data are no longer those that its run began with says so, and the server does not wait for ever."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from feddrm.data import Federation
from feddrm.deploy import local_cluster
from feddrm.deploy.flower import apps
from feddrm.deploy.flower.apps import Status, site_at
from feddrm.deploy.server.training import PATIENCE, Progress, Server
from feddrm.engine import RoundSchedule
from feddrm.errors import FeddrmError
from refusal import refused

from .conftest import NAMES, Deployed, HandCourier

Make = Callable[..., Deployed]
ROUTING = {"features": "raw", "path_rounds": 1, "rounds": 1}


def give(deployment: Deployed, name: str, **data: Any) -> None:
    """Other data for a site, as somebody would who edits its site.yaml; then it is started again."""
    path = deployment.folder / "sites" / name / "site.yaml"
    found = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**found, "data": {**found["data"], **data}}))
    deployment.restart_sites()


def played(server: Server) -> Progress:
    """One round, kept as the server keeps it."""
    brief = server._brief()
    method = brief.make_method()
    found = server._round(brief, method, RoundSchedule(method, brief.make_plan(), 3), server._progress(brief, method))
    assert found is not None
    found.save(server.checkpoint)
    return found


def test_more_samples_than_the_run_began_with(deployed: Make) -> None:
    deployment = deployed(router=False)
    sizes = deployment.server()._brief().sizes
    give(deployment, "lima", client=2)
    assert sizes[1] != sizes[2]
    assert played(deployment.server()).history[-1]["answered"] == ["oslo", "pune"]
    assert deployment.complaints == [
        f"lima: holds {sizes[2]} samples, this run began with {sizes[1]}: put them back, or start a new run"
    ]


@pytest.fixture
def arrays(deployed: Make) -> Callable[[Callable[..., Any]], Deployed]:
    """Sites with samples of their own, changed at lima after a first round."""

    def make(change: Callable[..., Any]) -> Deployed:
        deployment = deployed(router=False, training={"model": "mlp"})
        draw = np.random.default_rng(3)
        for name in NAMES:
            site = deployment.folder / "sites" / name
            np.savez(site / "own.npz", x=draw.normal(size=(30, 4)).astype(np.float32), y=[0, 1, 2] * 10)
            told = yaml.safe_load((site / "site.yaml").read_text())
            (site / "site.yaml").write_text(yaml.safe_dump({**told, "data": {"npz": "own.npz"}}))
        deployment.restart_sites()
        assert played(deployment.server()).history[-1]["answered"] == list(NAMES)
        path = deployment.folder / "sites" / "lima" / "own.npz"
        with np.load(path) as found:
            np.savez(path, **dict(zip("xy", change(found["x"], found["y"]), strict=True)))
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
    change, told = CHANGES[what]
    deployment = arrays(change)
    assert played(deployment.server()).history[-1]["answered"] == ["oslo", "pune"]
    (complaint,) = deployment.complaints
    assert complaint.startswith("lima: holds ")
    assert told in complaint
    assert complaint.endswith(", or start a new run")


def test_the_same_samples_are_no_others(arrays: Callable[[Any], Deployed]) -> None:
    """After a restart, and written anew."""
    deployment = arrays(lambda x, y: (x, y))
    assert played(deployment.server()).history[-1]["answered"] == list(NAMES)
    assert not deployment.complaints


def test_a_new_run_may_have_other_samples(arrays: Callable[[Any], Deployed]) -> None:
    """Also one under the old name, begun again at the server."""
    deployment = arrays(lambda x, y: (x + 1, y))
    for path in (deployment.folder / "server" / "runs" / "first").iterdir():
        path.unlink()
    for _ in range(2):
        assert played(deployment.server()).history[-1]["answered"] == list(NAMES)
        deployment.restart_sites()


def test_the_checksum_is_taken_once_and_stays(
    arrays: Callable[[Any], Deployed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once per start of a site, also where it refuses every letter; no letter has it."""
    deployment = arrays(lambda x, y: (x + 1, y))
    taken: list[tuple[str, ...]] = []
    digest = Federation.digest

    def counted(self: Federation) -> str:
        taken.append(self.names)
        return digest(self)

    monkeypatch.setattr(Federation, "digest", counted)
    courier = HandCourier(deployment.folder)
    server = deployment.server(courier)
    for _ in range(3):
        played(server)
    assert len(taken) == len(NAMES)
    kept = [(deployment.folder / "sites" / n / "runs" / "first" / "samples.sha256").read_bytes() for n in NAMES]
    assert all(len(checksum) == 64 for checksum in kept)
    assert not [way for way, _, letter in courier.letters if any(checksum in letter for checksum in kept)]


def test_a_site_that_lost_its_checksum_goes_on(arrays: Callable[[Any], Deployed]) -> None:
    """Nobody knows what the run began with, so nobody complains; a restart finds the new one."""
    deployment = arrays(lambda x, y: (x + 1, y))
    (deployment.folder / "sites" / "lima" / "runs" / "first" / "samples.sha256").unlink()
    for _ in range(2):
        assert played(deployment.server()).history[-1]["answered"] == list(NAMES)
        deployment.restart_sites()


@pytest.mark.parametrize("router", [True, False], ids=["fit", "end"])
def test_the_server_gives_up_in_words_and_goes_on_when_the_data_are_back(router: bool, deployed: Make) -> None:
    deployment = deployed(router=router, routing=ROUTING)
    server = deployment.server()
    sizes = server._brief().sizes
    give(deployment, "lima", client=2)
    waited: list[str] = []
    status = Status(deployment.folder / "server")

    def say(what: str, more: Mapping[str, Any]) -> None:
        status.tell(what, more)
        if what == "waiting":
            waited.append(more["for"])

    server.say = server.post.say = say
    told = f"holds {sizes[2]} samples, this run began with {sizes[1]}: put them back, or start a new run"
    with refused(f"lima: {told}", "'feddrm deploy run' goes on from here"):
        server.go()
    assert waited == [f"lima ({told})"] * (PATIENCE - 1), "what 'deploy status' says meanwhile"
    assert (local_cluster.status(deployment.folder)["complaint"] or "").endswith(f" lima: {told}")
    give(deployment, "lima", client=1)
    deployment.server().go()
    summary = json.loads((server.folder / "summary.json").read_text())
    assert (summary["rounds"], summary["accepted"]["lima"], bool(summary["router"])) == (2, 0, router)


def test_a_site_that_is_away_is_waited_for_as_long_as_it_takes(deployed: Make) -> None:
    """Longer than one that refuses."""
    deployment = deployed(routing=ROUTING)
    away = range(5, 5 + 2 * PATIENCE)
    courier = HandCourier(deployment.folder, away=lambda name, count: name == "lima" and count in away)
    deployment.server(courier).go()
    assert courier.asked > away[-1]
    assert not deployment.complaints


def test_sums_that_stay_wrong_are_given_up_too(deployed: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a step after others that were right: a site that answers some letters well is not for ever believed to."""
    deployment = deployed(routing=ROUTING)
    lima = site_at(str(deployment.folder / "sites" / "lima"))
    answer = lima._fit

    def ill(letter: Any) -> bytes:
        if letter.header["step"] == "moments":
            raise FeddrmError("no moments today")
        return answer(letter)

    monkeypatch.setitem(lima._answers, "fit", ill)
    with refused("lima: no moments today", f"{PATIENCE} times"):
        deployment.server().go()


def test_letters_that_a_fit_can_do_without_try_nobodys_patience(
    deployed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that has lost what it was told of the fit refuses many letters, and is told again."""
    deployment = deployed(routing={"features": "raw", "path_rounds": 6, "rounds": 6})
    monkeypatch.setattr("feddrm.deploy.server.training.PATIENCE", 3)
    lima = site_at(str(deployment.folder / "sites" / "lima"))
    answer, steps = lima._fit, list[str]()

    def forgetful(letter: Any) -> bytes:
        steps.append(letter.header["step"])
        if steps.count("features") == 1 and "gradient" in steps:
            raise FeddrmError("this site has not heard of the fit")
        return answer(letter)

    monkeypatch.setitem(lima._answers, "fit", forgetful)
    deployment.server().go()
    assert len(deployment.complaints) > 4
    assert steps.count("features") == 2


def test_why_a_run_was_given_up_reaches_whoever_watches_it(deployed: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its log and 'deploy status' show it."""
    deployment = deployed(routing=ROUTING)
    deployment.server()._brief()
    give(deployment, "lima", client=2)
    folder = deployment.folder / "server"
    monkeypatch.setattr(apps, "GridCourier", lambda grid: HandCourier(deployment.folder))
    monkeypatch.setattr("feddrm.deploy.server.training.AGAIN_SECONDS", 0.0)
    with pytest.raises(FeddrmError, match="lima: holds"):
        apps.serve(Path(folder), None)  # type: ignore[arg-type]
    lines = (folder / "complaints.log").read_text().splitlines()
    assert len(lines) == 1
    assert lines[0].endswith(": put them back, or start a new run")
