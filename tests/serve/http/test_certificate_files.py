"""Renewed certificates: they are taken up if certificate and key belong together."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

import pytest

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
