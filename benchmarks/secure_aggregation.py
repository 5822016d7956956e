"""Measures what secure aggregation adds to a round of three sites: masks at a site, sums at the server, bytes.

python -m benchmarks.secure_aggregation --json results/bench/secure_aggregation.json

Without a network and without training. Both ways have the steps of a real reply: packed and signed at a site, verified,
unpacked and combined at the server. Sites work side by side on machines of their own, so a round takes as long as the
slowest site and the server. The network carries the additional bytes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from benchmarks.result import finish
from feddrm.deploy.site.private_store import PrivateStore
from feddrm.deploy.site.site_masks import SITE_KEYS, SiteMasks
from feddrm.deploy.wire.fixed_point import decode
from feddrm.deploy.wire.masks import MASKED
from feddrm.deploy.wire.messages import pack, sign, unpack, verify
from feddrm.deploy.wire.run_spec import RunSpec
from feddrm.methods import Tensors
from feddrm.methods.method import weighted_mean
from feddrm.models import Model

NAMES = ("oslo", "lima", "pune")
SHARE = 1 / len(NAMES)
NETS = {"mlp": ("mlp", (64,), 10), "resnet18": ("resnet18", (3, 64, 64), 10)}


class Sites:
    """Three sites that know each other's keys."""

    def __init__(self, folder: Path) -> None:
        self.signing = {name: ec.generate_private_key(ec.SECP384R1()) for name in NAMES}
        self.store = PrivateStore(folder / "store")
        for name in NAMES:
            (folder / name / SITE_KEYS).mkdir(parents=True)
            for other, key in self.signing.items():
                public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
                (folder / name / SITE_KEYS / f"{other}.pub").write_bytes(public)
        self.masks = {name: SiteMasks(folder / name, name, key, 3) for name, key in self.signing.items()}
        self.spec = RunSpec(
            "first", NAMES, (1, 1, 1), ("a", "b"), (2,), "float32", None, False, ((0.0,), (1.0,)),
            {"name": "fedavg"}, {"name": "mlp"}, {}, secure_aggregation=True,
        )  # fmt: skip

    def question(self, number: int) -> dict[str, Any]:
        """The header of a round, with every site's mask key."""
        keys = {name: masks.signed_key(self.spec, self.store)["mask_key"] for name, masks in self.masks.items()}
        return {"kind": "train", "masks": {"nonce": str(number), "keys": keys}}


def play(sites: Sites, uploads: dict[str, Tensors], number: int, secure: bool) -> tuple[list[float], float, int]:
    """One round: the seconds of every site, those of the server, and the bytes of a reply."""
    header, seconds, replies = sites.question(number), [], {}
    for name in NAMES:
        began = time.perf_counter()
        upload = sites.masks[name].open(header, sites.spec)(uploads[name], SHARE) if secure else uploads[name]
        replies[name] = sign(pack({}, upload), sites.signing[name])
        seconds.append(time.perf_counter() - began)
    began = time.perf_counter()
    received = [
        unpack(verify(signed, sites.signing[name].public_key(), name)).tensors for name, signed in replies.items()
    ]
    if secure:
        total = np.zeros(len(received[0][MASKED]), np.uint64)
        for tensors in received:
            total += tensors[MASKED].numpy().view(np.uint64)
        shared = decode(total, uploads[NAMES[0]])
    else:
        shared = weighted_mean(received, torch.full((3,), SHARE, dtype=torch.float64))
    server = time.perf_counter() - began
    exact = weighted_mean(list(uploads.values()), torch.full((3,), SHARE, dtype=torch.float64))
    assert all(torch.allclose(shared[leaf], value, rtol=1e-5, atol=1e-6) for leaf, value in exact.items())
    return seconds, server, len(replies[NAMES[0]])


def measure(sites: Sites, net: str, repeats: int) -> dict[str, Any]:
    """Medians over rounds, both ways in turn; the first round of each is left out."""
    model, shape, classes = NETS[net]
    leaves = {
        leaf: value.detach() for leaf, value in Model.make(model).build(shape, classes, None, 1).named_parameters()
    }
    uploads = {
        name: {leaf: value + 0.01 * number for leaf, value in leaves.items()} for number, name in enumerate(NAMES)
    }
    rounds: dict[bool, list[tuple[float, float, float, int]]] = {False: [], True: []}
    for number in range(repeats + 1):
        for secure in (False, True):
            each, server, size = play(sites, uploads, hash((net, number)), secure)
            rounds[secure].append((max(each), server, sum(each) + server, size))
    out: dict[str, Any] = {"parameters": sum(value.numel() for value in leaves.values())}
    for secure, name in ((False, "without"), (True, "with")):
        site, server, whole, size = (statistics.median(column) for column in zip(*rounds[secure][1:], strict=True))
        out[name] = {
            "site_seconds": round(site, 4),
            "server_seconds": round(server, 4),
            "round_seconds": round(site + server, 4),
            "one_after_another_seconds": round(whole, 4),
            "bytes_from_a_site": int(size),
        }
    out["seconds_more_per_round"] = round(out["with"]["round_seconds"] - out["without"]["round_seconds"], 4)
    return out


def main() -> None:
    """Measure and print; --json also writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="feddrm-") as folder:
        sites = Sites(Path(folder))
        nets = {net: measure(sites, net, args.repeats) for net in NETS}
    finish({"sites": len(NAMES), "nets": nets}, args.json, libraries=["cryptography"])


if __name__ == "__main__":
    main()
