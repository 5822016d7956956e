"""The dates of a certificate, read without a package for certificates."""

from __future__ import annotations

from pathlib import Path

import pytest

from dates import days_from_now
from feddrm.checks.certificate_finding import certificate_finding
from feddrm.io.connection_errors import certificate_dates
from refusal import refused

certificates = pytest.importorskip("feddrm.deploy.provision.certificates")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    certificates.write_certificates(tmp_path / "authority", tmp_path, ["127.0.0.1", "server.example"])
    return tmp_path


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt"])
def test_the_dates_are_those_that_cryptography_reads(name: str, folder: Path) -> None:
    read = certificates.read_certificate(folder / name)
    text = (folder / name).read_text()
    assert certificate_dates(text) == (read.not_valid_before_utc, read.not_valid_after_utc)
    other = (folder / "ca.crt").read_text()
    assert certificate_dates(f"a remark\n{text}\n{other}") == certificate_dates(text), "the first of a chain counts"


def test_dates_after_2049_have_another_form(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "SERVER_DAYS", 30 * 365)
    certificates.renew_certificate(folder / "authority", folder, ["localhost"])
    read = certificates.read_certificate(folder / "tls.crt")
    assert read.not_valid_after_utc.year > 2049
    assert certificate_dates((folder / "tls.crt").read_text())[1] == read.not_valid_after_utc


@pytest.mark.parametrize(
    ("days", "level", "words"),
    [
        (0, "ok", ""),
        (790, "ok", ""),
        (800, "warning", "renew it"),
        (826, "problem", "it has expired, renew it"),
        (-2, "problem", "set this machine's clock"),
    ],
)
def test_a_certificate_is_judged_by_its_dates(days: int, level: str, words: str, folder: Path) -> None:
    with days_from_now(days):
        finding = certificate_finding(folder / "tls.crt", "renew it")
    begin, end = certificate_dates((folder / "tls.crt").read_text())
    assert finding.level == level
    assert f"tls.crt is valid from {begin:%Y-%m-%d} to {end:%Y-%m-%d}" in finding.text
    assert finding.text.endswith(words)


@pytest.mark.parametrize("content", [b"", b"\xff", b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"])
def test_a_file_that_is_no_certificate_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tls.crt").write_bytes(content)
    with refused(f"cannot read the certificate {tmp_path / 'tls.crt'}", "copy it again"):
        certificate_finding(tmp_path / "tls.crt", "renew it")
