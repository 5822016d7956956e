"""Renewed certificates: they are taken up if certificate and key belong together."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

import pytest

from dates import days_from_now
from feddrm.serve.http.certificate_files import CertificateFiles, certificate_files
from feddrm.serve.settings import HttpSettings
from serving import write_certificate


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_files_are_renewed_once_they_belong_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = write_certificate(tmp_path / "old")
    files, context = CertificateFiles(cert, key), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert not files.renewed()
    new_cert, new_key = write_certificate(tmp_path / "new")
    shutil.copy(new_cert, cert)
    assert not files.renewed()
    assert [record.getMessage() for record in caplog.records] == [
        "the renewed certificate cannot be used, the old one stays"
    ]
    assert not files.renewed()
    assert len(caplog.records) == 1  # not once a second
    shutil.copy(new_key, key)
    files.renew(context)
    assert not files.renewed()
    key.unlink()
    assert not files.renewed()
    shutil.copy(new_key, key)
    assert files.renewed()


def test_without_tls_there_are_no_files() -> None:
    assert certificate_files(HttpSettings()) is None


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_a_certificate_that_ends_soon_or_has_expired_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The gateway said nothing at any time, and its callers refused the certificate from one day to the next."""
    files, context = CertificateFiles(*write_certificate(tmp_path)), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for days in (0, 0, 3, 3):  # it is valid for two days
        with days_from_now(days):
            files.renew(context)
    soon, expired = (record.getMessage() for record in caplog.records)
    assert soon.startswith("cert.pem is valid from")
    assert soon.endswith(": it ends soon, renew it with its key, no restart is needed")
    assert expired.endswith("it has expired, renew it with its key, no restart is needed")
    certificates = pytest.importorskip("feddrm.deploy.provision.certificates")
    certificates.write_certificates(tmp_path / "authority", tmp_path, ["127.0.0.1"])
    shutil.copy(tmp_path / "tls.crt", tmp_path / "cert.pem")
    shutil.copy(tmp_path / "tls.key", tmp_path / "key.pem")
    files.renew(context)
    assert caplog.records[2:] == [], "one that is valid for long needs no word"
