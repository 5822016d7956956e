"""A site's half of secure aggregation: its mask key, and the checks before anything is masked and sent.

The mask key is in memory only, and a question's stream is used once. So nothing on disk can take a mask away later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from feddrm.deploy.site.private_store import PrivateStore
from feddrm.deploy.wire.fixed_point import encode
from feddrm.deploy.wire.key_files import load_public_key
from feddrm.deploy.wire.masks import MASKED, add_masks, check_method, pair_seed, sign_mask_key, verify_mask_key
from feddrm.deploy.wire.messages import digest, pack
from feddrm.deploy.wire.run_spec import RunSpec
from feddrm.errors import FeddrmError
from feddrm.methods import Tensors

SITE_KEYS = "keys"  # in a site's folder: NAME.pub of every other site
SENT = "masked-rounds"  # in the private store: for which sites this site has sent its part of each round


@dataclass(frozen=True, eq=False)
class Masking:
    """The masks of one question. They are good for one reply."""

    name: str
    seeds: Mapping[str, bytes]  # by the name of every other site

    def __call__(self, tensors: Mapping[str, Tensor], weight: float = 1.0) -> Tensors:
        """The tensors in fixed point and masked: without the other sites' replies they are random numbers."""
        words = encode(tensors, len(self.seeds) + 1, weight)
        add_masks(words, self.name, self.seeds)
        return {MASKED: torch.from_numpy(words.view(np.int64))}


class SiteMasks:
    """The mask key of a site's process. ``fewest`` is how many sites a sum must have, at least."""

    def __init__(self, folder: Path, name: str, signing: ec.EllipticCurvePrivateKey, fewest: int) -> None:
        self.keys, self.name, self.signing, self.fewest = folder / SITE_KEYS, name, signing, fewest
        self.key = X25519PrivateKey.generate()
        self._used: set[str] = set()

    def check_run(self, spec: RunSpec) -> None:
        """Refuse a run before its first round whose sums this site could not take part in."""
        check_method(spec.make_method())
        self._check_number(spec.names)
        for name in spec.names:
            self._registered(name)

    def signed_key(self, spec: RunSpec, store: PrivateStore) -> dict[str, Any]:
        """What the server relays to the other sites, and the sites that this site's last round was sent for."""
        sent = _sent(store)
        last = max(map(int, sent), default=0)
        signed = sign_mask_key(self.key.public_key(), spec.run, self.name, self.signing)
        return {"mask_key": signed, "sent_round": last, "sent_for": sent.get(str(last), [])}

    def open(self, header: Mapping[str, Any], spec: RunSpec, tensors: Mapping[str, Tensor] | None = None) -> Masking:
        """The masks for one question, after all checks of the keys that came with it.

        They cancel among sites that were asked the same. A server that asks every site something else, so that all
        values but one are known or zero, gets random numbers.
        """
        given = header.get("masks")
        if not isinstance(given, Mapping) or not isinstance(given.get("keys"), Mapping):
            raise FeddrmError("the run has secure aggregation, this message has no mask keys: nothing is sent")
        keys, nonce = given["keys"], str(given.get("nonce"))
        if header["kind"] != "train" and list(keys) != list(spec.names):
            raise FeddrmError("sums after training are over all sites of the run, these are not: nothing is sent")
        if not set(keys) <= set(spec.names) or self.name not in keys:
            raise FeddrmError(f"mask keys of {', '.join(keys)}: a sum is over this site and others of its run")
        self._check_number(keys)
        verified = {name: verify_mask_key(keys[name], spec.run, name, self._registered(name)) for name in keys}
        if verified[self.name] != self.key.public_key():
            raise FeddrmError("its process has started again and has a new mask key: the server must ask for it")
        if nonce in self._used:
            raise FeddrmError("a question with used masks came again: nothing is sent")
        self._used.add(nonce)
        alike = {key: value for key, value in header.items() if key not in ("to", "after", "after_message")}
        context = f"{spec.run} {nonce} {' '.join(sorted(keys))} {digest(pack(alike, tensors))}"
        others = {name: key for name, key in verified.items() if name != self.name}
        return Masking(self.name, {name: pair_seed(self.key, key, context) for name, key in others.items()})

    def record_round(self, store: PrivateStore, round: int, names: Sequence[str]) -> None:
        """Write for which sites a round is sent. The same round for other sites is refused.

        The difference of both sums would be the value of the site that is in one of them only.
        """
        sent, sites = _sent(store), sorted(names)
        if sent.setdefault(str(round), sites) != sites:
            raise FeddrmError(
                f"round {round} was sent for {', '.join(sent[str(round)])} before: for {', '.join(sites)} the "
                f"difference would show what one site sent; the server must give this round up"
            )
        store.keep(SENT, {"sites": sent}, {})

    def _check_number(self, names: Sequence[str] | Mapping[str, Any]) -> None:
        if len(names) < self.fewest:
            raise FeddrmError(
                f"a sum of {len(names)} sites, and this site takes part in sums of at least {self.fewest} "
                f"(fewest_sites in site.yaml): nothing is sent"
            )

    def _registered(self, name: str) -> ec.EllipticCurvePublicKey:
        if name == self.name:
            return self.signing.public_key()
        path = self.keys / f"{name}.pub"
        if not path.exists():
            raise FeddrmError(
                f"has no {SITE_KEYS}/{name}.pub: its administrator should ask {name} for its node.pub, compare the "
                f"fingerprints by telephone and put it there"
            )
        return load_public_key(path)


def _sent(store: PrivateStore) -> dict[str, list[str]]:
    kept = store.recall(SENT)
    return dict(kept.header["sites"]) if kept is not None else {}
