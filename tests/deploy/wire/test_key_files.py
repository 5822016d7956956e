"""Files of keys, and the short form by which people compare them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from feddrm.deploy.provision.certificates import write_key_pair
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
