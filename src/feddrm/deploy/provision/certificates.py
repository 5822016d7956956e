"""Certificates and keys of a federation: its own authority, the server's certificate, one key pair per site."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically

AUTHORITY = "feddrm federation authority"
AUTHORITY_DAYS, SERVER_DAYS = 3650, 825
PLAIN = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def new_key() -> ec.EllipticCurvePrivateKey:
    """An ECDSA key on P-384, as Flower's node authentication requires and ``ssh-keygen -t ecdsa -b 384`` makes."""
    return ec.generate_private_key(ec.SECP384R1())


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, from the first byte on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(content)


def write_key_pair(folder: Path, name: str) -> bytes:
    """Write ``name.key`` and ``name.pub`` as ssh-keygen does; returns the public half."""
    key = new_key()
    write_secret(folder / f"{name}.key", key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
    (folder / f"{name}.pub").write_bytes(public)
    return public


def write_certificates(authority: Path, server: Path, hosts: list[str]) -> bytes:
    """Write the authority and the server's certificate for ``hosts``; returns the authority's certificate.

    No machine needs ``ca.key`` afterwards: it can be stored offline.
    """
    ca_key = new_key()
    ca = (
        _builder(AUTHORITY, ca_key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, SHA384())
    )
    public = ca.public_bytes(Encoding.PEM)
    write_secret(authority / "ca.key", ca_key.private_bytes(*PLAIN))
    (authority / "ca.crt").write_bytes(public)
    (server / "ca.crt").write_bytes(public)
    renew_certificate(authority, server, hosts)
    return public


def renew_certificate(authority: Path, server: Path, hosts: list[str]) -> datetime.datetime:
    """Write a new key and certificate of the server for ``hosts``; returns until when it is valid.

    The certificate is written last: a server that notices it finds the key in place.
    """
    key, ca_key = new_key(), _authority_key(authority, server)
    certificate = (
        _builder(hosts[0][:64], key, SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, SHA384())
    )
    write_atomically(server / "tls.key", key.private_bytes(*PLAIN), private=True)
    write_atomically(server / "tls.crt", certificate.public_bytes(Encoding.PEM))
    return certificate.not_valid_after_utc


def _authority_key(authority: Path, server: Path) -> ec.EllipticCurvePrivateKey:
    """The authority's private key, if the server's ``ca.crt``, which sites trust, belongs to it."""
    try:
        key = load_pem_private_key((authority / "ca.key").read_bytes(), None)
    except (OSError, ValueError) as error:
        raise FeddrmError(
            f"cannot read {authority / 'ca.key'} ({error}): bring the authority from its safe, or name its folder by "
            "--authority"
        ) from error
    trusted = read_certificate(server / "ca.crt").public_key()
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != trusted:
        raise FeddrmError(f"{authority / 'ca.key'} is not the key of {server / 'ca.crt'}: no site would trust it")
    return key


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate (PEM)."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise FeddrmError(f"cannot read the certificate {path} ({error}): copy it again") from error


def certificate_hosts(path: Path) -> list[str]:
    """The names and addresses that a certificate is valid for."""
    names = read_certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def _builder(name: str, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(AUTHORITY))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
