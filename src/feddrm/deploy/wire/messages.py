"""Messages: a header and named tensors as safetensors bytes, signed by the sender.

TLS and node authentication protect the connection. A message does not rely on them: a site answers only
messages that its federation's server has signed, and the server accepts only replies that the site has signed
(docs/decisions/0008-signed-messages.md). A message contains no pickle and no code.
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
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from feddrm.deploy.wire.message_bytes import FORMAT, not_a_message, read_header
from feddrm.errors import FeddrmError
from feddrm.io.tensors import tensor_bytes
from feddrm.io.text import broken, read_bytes
from feddrm.methods import Tensors

ANY_SITE = "*"  # the recipient of a message to a node whose site is not known yet


class Message(NamedTuple):
    """A header of plain values, and named tensors."""

    header: dict[str, Any]
    tensors: Tensors


def pack(header: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> bytes:
    """A message as bytes. The order of the tensors is kept, because the last bit of a sum depends on it."""
    tensors = tensors or {}
    return tensor_bytes(tensors, {FORMAT: json.dumps({"header": dict(header), "order": list(tensors)})})


def unpack(content: bytes) -> Message:
    """The inverse of :func:`pack`. Bytes of any other form are refused."""
    try:
        tensors = load(content)
        header, order = read_header(content)
        return Message(header, {name: tensors[name] for name in order})
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise not_a_message(error) from error


def read_stored(path: Path, remedy: str) -> Message:
    """What :func:`pack` made and a file keeps. A damaged file is named, with the remedy."""
    content = read_bytes(path, remedy)
    try:
        return unpack(content)
    except FeddrmError as error:
        raise broken(path, "it is not whole", remedy) from error


def sign(content: bytes, key: ec.EllipticCurvePrivateKey) -> bytes:
    """The content with its signature in front."""
    signature = key.sign(content, ec.ECDSA(SHA256()))
    return len(signature).to_bytes(2, "big") + signature + content


def verify(signed: bytes, key: ec.EllipticCurvePublicKey, sender: str) -> bytes:
    """The content without its signature. A signature that is not the ``sender``'s is refused."""
    size = int.from_bytes(signed[:2], "big")
    signature, content = signed[2 : 2 + size], signed[2 + size :]
    try:
        key.verify(signature, content, ec.ECDSA(SHA256()))
    except InvalidSignature as error:
        raise FeddrmError(f"refused a message that {sender} has not signed: compare the keys of both ends") from error
    return content


def digest(content: bytes) -> str:
    """The checksum by which a reply names its request: an old reply cannot pass for a new one."""
    return hashlib.sha256(content).hexdigest()
