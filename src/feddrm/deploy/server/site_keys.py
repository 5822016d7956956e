"""The members of a federation as the server knows them: one public key per site in its folder."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from feddrm.deploy.wire.key_files import load_public_key
from feddrm.errors import FeddrmError

KEYS = "keys"  # the folder of NAME.pub for every member; the server's own pair is there, too
REMOVED = "removed"  # in it: the keys of former members, which are not accepted again
NODES = "nodes.json"  # which Flower node has which name


def site_keys(keys: Path) -> dict[str, Path]:
    """The file of every member's public key, by name."""
    return {path.stem: path for path in sorted(keys.glob("*.pub")) if path.stem != "server"}


def read_site_keys(keys: Path) -> dict[str, ec.EllipticCurvePublicKey]:
    """Every member's public key, by name. A file that is removed at this moment is no member's any more."""
    found = {}
    for name, path in site_keys(keys).items():
        try:
            found[name] = load_public_key(path)
        except FeddrmError:
            if path.exists():
                raise
    return found
