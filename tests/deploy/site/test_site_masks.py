"""What a site checks before it masks anything: keys, the number of sites, used masks, rounds sent before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from feddrm.deploy.provision.certificates import new_key
from feddrm.deploy.site.private_store import PrivateStore
from feddrm.deploy.site.site_masks import SITE_KEYS, SiteMasks
from feddrm.deploy.wire.fixed_point import decode
from feddrm.deploy.wire.masks import MASKED
from feddrm.deploy.wire.run_spec import RunSpec
from refusal import refused

NAMES = ("oslo", "lima", "pune", "kyiv")
SPEC = RunSpec(
    "first", NAMES, (10, 20, 30, 40), ("a", "b"), (2,), "float32", None, False, ((0.0,), (1.0,)),
    {"name": "fedavg"}, {"name": "mlp"}, {}, secure_aggregation=True,
)  # fmt: skip


def public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


@pytest.fixture
def sites(tmp_path: Path) -> dict[str, SiteMasks]:
    signing = {name: new_key() for name in NAMES}
    for name in NAMES:
        (tmp_path / name / SITE_KEYS).mkdir(parents=True)
        for other in set(NAMES) - {name}:  # no administrator copies a site's own key
            (tmp_path / name / SITE_KEYS / f"{other}.pub").write_bytes(public(signing[other]))
    return {name: SiteMasks(tmp_path / name, name, signing[name], 3) for name in NAMES}


def question(sites: dict[str, SiteMasks], store: PrivateStore, *names: str, kind: str = "train") -> dict[str, Any]:
    keys = {name: sites[name].signed_key(SPEC, store)["mask_key"] for name in names or NAMES}
    return {"kind": kind, "masks": {"nonce": "1", "keys": keys}}


@pytest.fixture
def store(tmp_path: Path) -> PrivateStore:
    return PrivateStore(tmp_path / "store")


def test_replies_of_all_sites_add_up_and_of_fewer_do_not(sites: dict[str, SiteMasks], store: PrivateStore) -> None:
    header, form = question(sites, store), {"a": torch.tensor([0.5, -3.0]), "n": torch.tensor(2)}
    replies = [site.open(header, SPEC)(form, 0.25)[MASKED].numpy().view(np.uint64) for site in sites.values()]
    total = decode(np.sum(replies, axis=0, dtype=np.uint64), form)
    assert total["a"].tolist() == [0.5, -3.0]
    assert int(total["n"]) == 8
    assert decode(np.sum(replies[:3], axis=0, dtype=np.uint64), form)["a"].abs().max() > 1
    header["masks"]["nonce"] = "2"
    with refused("above 1.049e+06, the most that a sum of 4 sites holds"):
        sites["oslo"].open(header, SPEC)({"a": torch.tensor([2.0**20 + 1])})


@pytest.mark.parametrize(
    ("header", "tensors"),
    [({"brief": {"sizes": [10, 2**52]}}, {}), ({"round": 2}, {}), ({}, {"table/raw/scale": torch.tensor(1e300)})],
)
def test_replies_to_different_questions_do_not_add_up(
    sites: dict[str, SiteMasks], store: PrivateStore, header: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> None:
    """Else a server could ask all sites but one so that their values are zero, and learn that one's value."""
    asked, form = question(sites, store), {"a": torch.zeros(100)}
    other = {
        name: {**asked, "to": name, "after": number, "after_message": f"digest {number}"}  # these may differ
        for number, name in enumerate(NAMES)
    }
    sent: dict[str, dict[str, torch.Tensor]] = {name: {} for name in NAMES}

    def total() -> torch.Tensor:
        for site in sites.values():
            site._used.clear()
        masked = [sites[name].open(other[name], SPEC, sent[name])(form)[MASKED] for name in NAMES]
        return decode(np.sum([m.numpy().view(np.uint64) for m in masked], axis=0, dtype=np.uint64), form)["a"]

    assert not total().any()
    other["kyiv"] |= header
    sent["kyiv"] = tensors
    assert total().abs().median() > 1000


def test_a_sum_of_too_few_sites_is_refused(sites: dict[str, SiteMasks], store: PrivateStore) -> None:
    with refused("a sum of 2 sites", "at least 3", "nothing is sent"):
        sites["oslo"].open(question(sites, store, "oslo", "lima"), SPEC)
    sites["oslo"].fewest = 4
    with refused("a sum of 3 sites", "at least 4"):
        sites["oslo"].open(question(sites, store, *NAMES[:3]), SPEC)
    sites["oslo"].check_run(SPEC)
    sites["oslo"].open(question(sites, store, kind="fit"), SPEC)
    sites["oslo"].fewest = 5
    with refused("a sum of 4 sites", "at least 5"):
        sites["oslo"].check_run(SPEC)


def test_a_question_without_keys_or_for_others_is_refused(sites: dict[str, SiteMasks], store: PrivateStore) -> None:
    for masks in ({}, {"masks": "1"}, {"masks": {"nonce": "1"}}, {"masks": {"nonce": "1", "keys": list(NAMES)}}):
        with refused("no mask keys"):
            sites["oslo"].open({"kind": "train", **masks}, SPEC)
    with refused("over this site and others of its run"):
        sites["oslo"].open(question(sites, store, *NAMES[1:]), SPEC)
    with refused("over this site and others of its run"):
        sites["oslo"].open(question(sites, store), replace(SPEC, names=NAMES[:3], sizes=(1, 2, 3)))
    for kind in ("fit", "answers"):  # a difference of two such sums would be one site's
        with refused("over all sites of the run"):
            sites["oslo"].open(question(sites, store, *NAMES[:3], kind=kind), SPEC)


def test_a_forged_key_is_refused(sites: dict[str, SiteMasks], store: PrivateStore, tmp_path: Path) -> None:
    header = question(sites, store)
    server = SiteMasks(tmp_path / "oslo", "lima", new_key(), 3)  # it would read what oslo sends, if oslo took its key
    header["masks"]["keys"]["lima"] = server.signed_key(SPEC, store)["mask_key"]
    with refused("lima has not signed"):
        sites["oslo"].open(header, SPEC)
    header["masks"]["keys"]["lima"] = sites["pune"].signed_key(SPEC, store)["mask_key"]
    with refused("lima has not signed"):
        sites["oslo"].open(header, SPEC)


def test_a_replayed_key_is_refused(sites: dict[str, SiteMasks], store: PrivateStore, tmp_path: Path) -> None:
    """Of another run by everybody; an old one of this run by its own site, whose process has started again."""
    header = question(sites, store)
    header["masks"]["keys"]["lima"] = sites["lima"].signed_key(replace(SPEC, run="second"), store)["mask_key"]
    with refused("lima has not signed", "'first'"):
        sites["oslo"].open(header, SPEC)
    old = question(sites, store)
    again = SiteMasks(tmp_path / "lima", "lima", sites["lima"].signing, 3)
    with refused("a new mask key"):
        again.open(old, SPEC)


def test_masks_are_used_once(sites: dict[str, SiteMasks], store: PrivateStore) -> None:
    """Of two values under one mask the difference would be known."""
    header = question(sites, store)
    first = sites["oslo"].open(header, SPEC)({"a": torch.zeros(3)})[MASKED]
    with refused("used masks"):
        sites["oslo"].open(header, SPEC)
    header["masks"]["nonce"] = "2"
    assert not torch.equal(first, sites["oslo"].open(header, SPEC)({"a": torch.zeros(3)})[MASKED])


def test_a_site_whose_key_is_not_here_is_refused_with_the_remedy(sites: dict[str, SiteMasks]) -> None:
    (sites["oslo"].keys / "kyiv.pub").unlink()
    with refused("has no keys/kyiv.pub", "node.pub", "fingerprints"):
        sites["oslo"].check_run(SPEC)


def test_a_run_whose_server_needs_single_uploads_is_refused(sites: dict[str, SiteMasks]) -> None:
    with refused("confree", "one by one"):
        sites["oslo"].check_run(replace(SPEC, method={"name": "confree"}))


def test_a_round_is_sent_for_one_set_of_sites(sites: dict[str, SiteMasks], store: PrivateStore, tmp_path: Path) -> None:
    told = sites["oslo"].signed_key(SPEC, store)
    assert (told["sent_round"], told["sent_for"]) == (0, [])
    sites["oslo"].record_round(store, 1, NAMES)
    sites["oslo"].record_round(store, 2, NAMES)
    sites["oslo"].record_round(store, 2, NAMES[::-1])
    again = SiteMasks(tmp_path / "oslo", "oslo", sites["oslo"].signing, 3)  # after a restart
    told = again.signed_key(SPEC, store)
    assert (told["sent_round"], told["sent_for"]) == (2, sorted(NAMES))
    for round in (1, 2):
        with refused(f"round {round} was sent for kyiv, lima, oslo, pune", "give this round up"):
            again.record_round(store, round, NAMES[:3])
    again.record_round(store, 3, NAMES[:3])
