"""The certificates and keys of a federation."""

from __future__ import annotations

import ipaddress
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from feddrm.deploy.provision.certificates import write_certificates, write_key_pair, write_secret
from feddrm.deploy.wire.key_files import load_private_key, load_public_key


def test_the_servers_certificate_is_signed_by_the_authority_for_its_hosts(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    public = write_certificates(tmp_path / "authority", tmp_path / "server", ["server.example", "10.0.0.7"])
    assert (tmp_path / "authority" / "ca.crt").read_bytes() == (tmp_path / "server" / "ca.crt").read_bytes() == public
    authority = x509.load_pem_x509_certificate(public)
    server = x509.load_pem_x509_certificate((tmp_path / "server" / "tls.crt").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server.example"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.0.0.7")]
    constraints = [c.extensions.get_extension_for_class(x509.BasicConstraints).value.ca for c in (authority, server)]
    assert constraints == [True, False]
    assert (server.not_valid_after_utc - server.not_valid_before_utc).days == 826
    assert (authority.not_valid_after_utc - authority.not_valid_before_utc).days == 3651


def test_a_key_pair_belongs_together_and_its_private_half_is_secret(tmp_path: Path) -> None:
    public = write_key_pair(tmp_path, "node")
    assert (tmp_path / "node.pub").read_bytes() == public
    private = load_private_key(tmp_path / "node.key")
    assert private.public_key() == load_public_key(tmp_path / "node.pub")
    assert isinstance(private.curve, ec.SECP384R1)
    assert stat.S_IMODE((tmp_path / "node.key").stat().st_mode) == 0o600


@pytest.mark.usefixtures("open_umask")
def test_a_secret_is_never_overwritten(tmp_path: Path) -> None:
    write_secret(tmp_path / "secret", b"first")
    with pytest.raises(FileExistsError):
        write_secret(tmp_path / "secret", b"second")
    assert (tmp_path / "secret").read_bytes() == b"first"
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
