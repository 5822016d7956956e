"""Files of keys, and the short form by which people compare them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from feddrm.deploy.provision.certificates import new_key, write_key_pair
from feddrm.deploy.wire.key_files import fingerprint, load_private_key, load_public_key
from refusal import refused


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed")
def test_the_fingerprint_is_that_of_ssh_keygen(tmp_path: Path) -> None:
    write_key_pair(tmp_path, "node")
    words = ["ssh-keygen", "-l", "-f", str(tmp_path / "node.pub")]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert fingerprint(load_public_key(tmp_path / "node.pub")) == shown.split()[1]


def test_a_file_that_is_no_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "node.pub").write_text("ssh-rsa nonsense")
    with refused("cannot read the public key", "copy it again"):
        load_public_key(tmp_path / "node.pub")
    with refused("cannot read the private key", "node.key"):
        load_private_key(tmp_path / "node.key")


def test_a_public_key_in_the_form_of_openssl_is_refused(tmp_path: Path) -> None:
    pem = new_key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "node.pub").write_bytes(pem)
    with refused("cannot read the public key", "Unsupported key type"):
        load_public_key(tmp_path / "node.pub")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed")
def test_a_private_key_with_a_password_is_refused(tmp_path: Path) -> None:
    words = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "password", "-f", str(tmp_path / "node.key")]
    subprocess.run(words, check=True)
    with refused("cannot read the private key", "password"):
        load_private_key(tmp_path / "node.key")
