"""Pairwise masks: two sites agree on a stream of random words; one adds it, the other subtracts it.

As in Bonawitz et al., "Practical Secure Aggregation" (CCS 2017), without their secret shares
(docs/decisions/0017-secure-aggregation.md). The server relays the sites' mask keys. Every key is signed by its site, so
the server cannot put its own in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from feddrm.deploy.wire.fixed_point import Words
from feddrm.errors import FeddrmError, SettingError
from feddrm.methods import Method, Tensors

MASK_PROTOCOL = 2  # of the messages of secure aggregation
FEWEST_SITES = 3  # of two, each would know the other's value from the sum
MASKED = "masked"  # the one tensor of a masked reply
SUMMED = {"loss": torch.float64, "right": torch.int64, "tested": torch.int64}  # fields that are masked as tensors
BLOCK = 2**16  # words that are masked at once: they stay in the processor's cache


def sign_mask_key(key: X25519PublicKey, run: str, site: str, signing: ec.EllipticCurvePrivateKey) -> dict[str, str]:
    """A site's mask key for a run, with the site's signature, as the server relays it."""
    raw = key.public_bytes_raw()
    return {"key": raw.hex(), "signature": signing.sign(_statement(raw, run, site), ec.ECDSA(SHA256())).hex()}


def verify_mask_key(signed: Any, run: str, site: str, key: ec.EllipticCurvePublicKey) -> X25519PublicKey:
    """The mask key, if the site signed it for this run."""
    try:
        raw = bytes.fromhex(signed["key"])
        key.verify(bytes.fromhex(signed["signature"]), _statement(raw, run, site), ec.ECDSA(SHA256()))
        return X25519PublicKey.from_public_bytes(raw)
    except (InvalidSignature, KeyError, TypeError, ValueError) as error:
        raise FeddrmError(
            f"refused a mask key that {site} has not signed for run '{run}': compare keys/{site}.pub with its node.pub"
        ) from error


def pair_seed(own: X25519PrivateKey, other: X25519PublicKey, context: str) -> bytes:
    """The seed of the stream that two sites share in one question; ``context`` names the question."""
    try:
        secret = own.exchange(other)
    except ValueError as error:  # a key of low order: the secret would be known to everybody
        raise FeddrmError("refused a mask key that gives no secret: let its site start again") from error
    return HKDF(SHA256(), 32, None, f"feddrm-mask-{MASK_PROTOCOL} {context}".encode()).derive(secret)


def add_masks(words: Words, name: str, seeds: Mapping[str, bytes]) -> None:
    """Mask the words of the site ``name`` in place, with the stream of every other site's seed."""
    zeros, stream = memoryview(bytes(8 * BLOCK)), memoryview(bytearray(8 * BLOCK))
    for other, seed in seeds.items():
        cipher = Cipher(ChaCha20(seed, bytes(16)), None).encryptor()
        combine = np.add if name < other else np.subtract
        for start in range(0, len(words), BLOCK):
            part = words[start : start + BLOCK]
            cipher.update_into(zeros[: part.nbytes], stream)
            combine(part, np.frombuffer(stream, "<u8", len(part)), out=part)


def summed_fields(header: Mapping[str, Any]) -> Tensors:
    """The fields of a header that leave a site as parts of a sum, as tensors."""
    return {f"field/{key}": torch.tensor(header[key], dtype=dtype) for key, dtype in SUMMED.items() if key in header}


def required_masks(site: str) -> str:
    """Why a site takes no part in a run without secure aggregation, and what to do."""
    return (
        f"{site} requires secure aggregation (site.yaml), this run has none: write 'secure_aggregation: true' in "
        f"federation.yaml, and choose another run"
    )


def check_method(method: Method) -> None:
    """Refuse a method whose server needs single uploads."""
    if not method.averages:
        raise SettingError(
            f"{method.name}: its server needs the uploads one by one, and secure aggregation shows their sum only: "
            f"choose another method or variant, or leave secure_aggregation out"
        )


def _statement(raw: bytes, run: str, site: str) -> bytes:
    return b"feddrm mask key\0" + f"{run}\0{site}\0".encode() + raw
