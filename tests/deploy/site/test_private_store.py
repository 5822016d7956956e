"""The private store: its files, and who may read what a run leaves on a site's disk."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from deployment import NAMES, Deployed
from feddrm.deploy.site.private_store import PrivateStore
from feddrm.deploy.wire.messages import pack
from refusal import refused

SLOTS = {"personal": {"head.weight": torch.arange(4.0), "head.bias": torch.ones(2)}, "mix": {}}


def test_slots_come_back_and_an_empty_slot_with_them(tmp_path: Path) -> None:
    store = PrivateStore(tmp_path / "runs" / "first")
    store.save(3, SLOTS)
    slots = store.load(3)
    assert {slot: list(leaves) for slot, leaves in slots.items()} == {
        "personal": ["head.weight", "head.bias"],
        "mix": [],
    }
    for leaf, value in SLOTS["personal"].items():
        assert torch.equal(slots["personal"][leaf], value)


def test_the_file_is_the_one_that_older_versions_wrote(tmp_path: Path) -> None:
    store = PrivateStore(tmp_path)
    store.save(3, SLOTS)
    tensors = {f"personal/{leaf}": value for leaf, value in SLOTS["personal"].items()}
    expected = pack({"round": 3, "slots": ["personal", "mix"]}, tensors)
    assert (tmp_path / "private-3.safetensors").read_bytes() == expected


def test_rounds_before_the_last_accepted_one_are_deleted(tmp_path: Path) -> None:
    store = PrivateStore(tmp_path)
    with refused("no private part after round 2, only after none"):
        store.load(2)
    for round in (2, 3, 10):
        store.save(round, SLOTS)
    for other in ("private-11.safetensors.copy", "old-private-12.safetensors", "samples.sha256"):
        (tmp_path / other).write_bytes(b"")
    store.forget_before(3)
    assert store.rounds() == [3, 10]
    with refused("no private part after round 2, only after [3, 10]", "put back the file from a copy"):
        store.load(2)


@pytest.mark.slow
def test_a_site_keeps_the_last_two_rounds_of_a_run(deployed: Callable[..., Deployed]) -> None:
    """The server may have crashed before it saved the last one."""
    deployment = deployed(training={"rounds": 4}, router=False)
    deployment.server().go()
    assert PrivateStore(deployment.site_folder("oslo") / "runs" / "first").rounds() == [3, 4]


def test_the_checksum_of_the_samples_is_stored_at_the_start(tmp_path: Path) -> None:
    store = PrivateStore(tmp_path)
    assert store.check_samples("a", restart=False)
    assert store.check_samples("a", restart=False)
    assert not store.check_samples("b", restart=False)
    assert store.check_samples("b", restart=True)
    assert not store.check_samples("a", restart=False)


def open_to_others(folder: Path) -> set[str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)) for path in files if stat.S_IMODE(path.stat().st_mode) != 0o600}


@pytest.mark.usefixtures("open_umask")
def test_no_file_of_the_store_is_open_to_others(tmp_path: Path) -> None:
    store = PrivateStore(tmp_path)
    assert store.recall("fit-head") is None
    store.save(3, SLOTS)
    store.keep("fit-head", {"round": 3}, SLOTS["personal"])
    store.check_samples("a", restart=False)
    assert len(list(tmp_path.iterdir())) == 3
    assert open_to_others(tmp_path) == set()
    kept = store.recall("fit-head")
    assert kept is not None
    assert (kept.header, list(kept.tensors)) == ({"round": 3}, list(SLOTS["personal"]))


@pytest.mark.slow
@pytest.mark.usefixtures("open_umask")
def test_only_the_owner_can_read_what_is_private(deployed: Callable[..., Deployed]) -> None:
    deployment = deployed(routing={"features": "raw", "path_rounds": 1, "rounds": 1, "heads": True})
    before = {name: open_to_others(deployment.site_folder(name)) for name in NAMES}
    deployment.server().go()
    public = {"config.yaml", "data.json", *(f"router/{n}" for n in ("heads.safetensors", "manifest.json", ".commit"))}
    public.add("router/router.safetensors")
    for name in NAMES:
        folder = deployment.site_folder(name)
        own = {f"clients/{name}/{file}" for file in ("private.safetensors", "head.safetensors", "temperature.json")}
        stored = {
            f"runs/first/{file}"
            for file in ("private-2.safetensors", "fit-features.safetensors", "fit-head.safetensors")
        }
        files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert own | stored | {"runs/first/samples.sha256"} <= files
        more = {f"clients/{name}/shared.safetensors", f"clients/{name}/brief.yaml"}
        assert open_to_others(folder) - before[name] == public | more


def test_a_damaged_private_part_is_named_with_the_remedy(tmp_path: Path) -> None:
    """A disk may lose bytes. It was called a message of another version of feddrm."""
    store = PrivateStore(tmp_path)
    store.save(3, SLOTS)
    path = tmp_path / "private-3.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with refused(f"{path} is broken (it is not whole)", "put back the file from a copy, or start a new run"):
        store.load(3)


def test_slots_of_another_training_are_refused(tmp_path: Path) -> None:
    """Its method may share the leaves that are private here: the server could so ask for them."""
    store = PrivateStore(tmp_path, "abc")
    store.save(3, SLOTS)
    assert store.load(3, "meta")["personal"]["head.bias"].is_meta, "on the device that is asked for"
    with refused("round 3 is of a training with another method, model or plan", "start a new run"):
        PrivateStore(tmp_path, "other").load(3)
    assert PrivateStore(tmp_path).load(3).keys() == SLOTS.keys()
    PrivateStore(tmp_path).save(3, SLOTS)  # by an older version
    assert store.load(3).keys() == SLOTS.keys()


def test_slots_that_another_message_made_are_refused(tmp_path: Path) -> None:
    store = PrivateStore(tmp_path)
    store.save(3, SLOTS, "abc")
    assert store.load(3, message="abc").keys() == store.load(3).keys() == SLOTS.keys()
    with refused("round 3 is not the one that the server went on from", "put back the latest copy"):
        store.load(3, message="other")
    store.save(3, SLOTS)  # by an older version
    assert store.load(3, message="other").keys() == SLOTS.keys()
