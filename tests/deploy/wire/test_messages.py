"""Messages: their bytes, their signatures, and what is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from safetensors.torch import save

from feddrm.deploy.provision.certificates import new_key, write_key_pair
from feddrm.deploy.wire.key_files import load_private_key, load_public_key
from feddrm.deploy.wire.message_bytes import FORMAT
from feddrm.deploy.wire.messages import pack, sign, unpack, verify
from feddrm.errors import FeddrmError
from refusal import refused

HEADER = {"kind": "train", "to": "oslo", "round": 3, "brief": {"run": "first", "names": ["oslo", "lima"]}}
TENSORS = {"head.weight": torch.arange(6.0).reshape(2, 3), "client": torch.tensor(1), "a": torch.zeros(0, 4)}


def test_the_bytes_of_a_message_stay_the_same() -> None:
    """Sites of the same release, and files in old run folders, depend on them."""
    assert FORMAT == "feddrm-letter-1"
    content = pack(HEADER, TENSORS)
    assert hashlib.sha256(content).hexdigest() == "7007e7ba81ea24ca48df80ab27f98cc39becb0580ff7247f56906d37663a4ffb"
    assert content == save(TENSORS, metadata={FORMAT: json.dumps({"header": HEADER, "order": list(TENSORS)})})


def test_header_and_tensors_come_back_in_their_order() -> None:
    header, tensors = unpack(pack(HEADER, TENSORS))
    assert header == HEADER
    assert list(tensors) == list(TENSORS)
    many = {f"leaf-{7 * number % 12}": torch.zeros(1) for number in range(12)}  # the file itself has another order
    assert list(unpack(pack(HEADER, many)).tensors) == list(many)
    for name, value in TENSORS.items():
        assert torch.equal(tensors[name], value)
        assert tensors[name].dtype == value.dtype


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not safetensors",
        save({"a": torch.zeros(1)}),
        save({"a": torch.zeros(1)}, metadata={FORMAT: "[" * 100_000}),
        save({"a": torch.zeros(1)}, metadata={FORMAT: '{"header": {}, "order": ["b"]}'}),
        save({"a": torch.zeros(1)}, metadata={FORMAT: '{"header": {}, "order": [["a"]]}'}),
        save({"a": torch.zeros(1)}, metadata={FORMAT: '{"header": 3, "order": []}'}),
    ],
)
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(FeddrmError, match=f"not a message of format {FORMAT}"):
        unpack(content)


def test_a_signature_is_verified() -> None:
    key = new_key()
    signed = sign(b"content", key)
    assert verify(signed, key.public_key(), "oslo") == b"content"
    changed = bytes([*signed[:-1], signed[-1] ^ 1])
    for forged in (changed, sign(b"content", new_key()), b"", b"\xff\xff", signed[2:]):
        with refused("refused a message that oslo has not signed"):
            verify(forged, key.public_key(), "oslo")


def test_keys_are_read_and_others_are_refused(tmp_path: Path) -> None:
    write_key_pair(tmp_path, "node")
    private, public = load_private_key(tmp_path / "node.key"), load_public_key(tmp_path / "node.pub")
    assert isinstance(private.curve, ec.SECP384R1)
    assert verify(sign(b"content", private), public, "node") == b"content"
    other = ed25519.Ed25519PrivateKey.generate()
    (tmp_path / "other.key").write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    (tmp_path / "other.pub").write_bytes(other.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    cases = ((load_private_key, "key", "put it back"), (load_public_key, "pub", "copy it again"))
    for load_key, suffix, remedy in cases:
        with refused(f"other.{suffix} is no ECDSA key", "ssh-keygen"):
            load_key(tmp_path / f"other.{suffix}")
        with refused(f"missing.{suffix}", remedy):
            load_key(tmp_path / f"missing.{suffix}")
