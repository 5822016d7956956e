"""What crosses the wire: a header and named tensors as safetensors, signed by whoever sends them.

TLS, node authentication and the SuperLink's secret guard the line; a letter does not rely on them. A site
answers only what this federation's server has signed, and the server believes only what the site has
signed. No pickle, no code: a letter is read or refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from safetensors import SafetensorError
from safetensors.torch import load, save

from feddrm.errors import FeddrmError
from feddrm.methods import Tensors

FORMAT = "feddrm-letter-1"
ANYBODY = "*"  # to whom a question by name is not yet possible


class Message(NamedTuple):
    """What is said (plain values) and what comes with it."""

    header: dict[str, Any]
    tensors: Tensors


def pack(header: Mapping[str, Any], tensors: Mapping[str, Any] | None = None) -> bytes:
    """A letter as bytes; the order of the tensors is kept, because sums depend on it in the last bit."""
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in (tensors or {}).items()}
    return save(plain, metadata={FORMAT: json.dumps({"header": dict(header), "order": list(plain)})})


def unpack(content: bytes) -> Message:
    """The inverse of :func:`pack`; anything else is refused."""
    try:
        tensors = load(content)
        size = int.from_bytes(content[:8], "little")
        told = json.loads(json.loads(content[8 : 8 + size])["__metadata__"][FORMAT])
        return Message(dict(told["header"]), {name: tensors[name] for name in told["order"]})
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise FeddrmError(f"not a letter of format {FORMAT} ({error}): both ends need the same feddrm") from error


def load_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A key that ``feddrm deploy init`` or ``ssh-keygen -t ecdsa -b 384`` wrote."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise FeddrmError(f"cannot read the private key {path} ({error}): copy it again") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FeddrmError(f"{path} is no ECDSA key: make one with 'ssh-keygen -t ecdsa -b 384'")
    return key


def load_public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """The public half of such a key."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise FeddrmError(f"cannot read the public key {path} ({error}): copy it again") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FeddrmError(f"{path} is no ECDSA key: make one with 'ssh-keygen -t ecdsa -b 384'")
    return key


def seal(content: bytes, key: ec.EllipticCurvePrivateKey) -> bytes:
    """The letter with its signature in front."""
    signature = key.sign(content, ec.ECDSA(SHA256()))
    return len(signature).to_bytes(2, "big") + signature + content


def opened(sealed: bytes, key: ec.EllipticCurvePublicKey, sender: str) -> bytes:
    """The letter without its signature, which must be ``sender``'s."""
    size = int.from_bytes(sealed[:2], "big")
    signature, content = sealed[2 : 2 + size], sealed[2 + size :]
    try:
        key.verify(signature, content, ec.ECDSA(SHA256()))
    except InvalidSignature as error:
        raise FeddrmError(f"a letter that {sender} has not signed was refused: compare the keys of both") from error
    return content


def digest(content: bytes) -> str:
    """Which letter an answer answers: an old answer cannot be passed off as a new one."""
    return hashlib.sha256(content).hexdigest()
