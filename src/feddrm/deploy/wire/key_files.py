"""The files of ECDSA keys: reading them, and the short form by which people compare them."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from feddrm.errors import FeddrmError


def load_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a key that ``feddrm deploy init`` or ``ssh-keygen -t ecdsa -b 384`` wrote."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise FeddrmError(
            f"cannot read the private key {path} ({error}): put it back, or make one with 'feddrm deploy keygen'"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FeddrmError(f"{path} is no ECDSA key: make one with 'ssh-keygen -t ecdsa -b 384'")
    return key


def load_public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """Read the public half of such a key."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise FeddrmError(f"cannot read the public key {path} ({error}): copy it again") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FeddrmError(f"{path} is no ECDSA key: make one with 'ssh-keygen -t ecdsa -b 384'")
    return key


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """The short form of a public key by which people compare keys, as ``ssh-keygen -l`` shows it."""
    blob = base64.b64decode(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
