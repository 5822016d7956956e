"""The certificates of a federation, by their dates."""

from __future__ import annotations

from pathlib import Path

import pytest

from dates import days_from_now
from feddrm.deploy.provision.certificates import write_certificates
from feddrm.deploy.tls_files import (
    CERTIFICATE,
    KEY,
    require_pair,
    require_valid,
    server_certificates,
    site_certificate,
    warnings,
)
from refusal import refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_certificates(tmp_path / "authority", tmp_path, ["localhost"])
    return tmp_path


def test_valid_certificates_need_no_word(folder: Path) -> None:
    require_valid(server_certificates(folder))
    assert warnings([*server_certificates(folder), site_certificate(folder)]) == []


@pytest.mark.parametrize("damage", ["another", "cut off", "empty"])
def test_a_key_that_does_not_fit_its_certificate_is_named(damage: str, folder: Path, tmp_path: Path) -> None:
    require_pair(folder)
    (tmp_path / "other").mkdir()
    write_certificates(tmp_path / "other" / "authority", tmp_path / "other", ["localhost"])
    content = {
        "another": (tmp_path / "other" / KEY).read_bytes(),
        "cut off": (folder / KEY).read_bytes()[:100],
        "empty": b"",
    }
    (folder / KEY).write_bytes(content[damage])
    with refused(f"{folder / KEY} is not the key of {CERTIFICATE}: put both back from a copy", "'feddrm deploy renew'"):
        require_pair(folder)


def test_the_server_is_warned_a_month_before_and_does_not_start_afterwards(folder: Path) -> None:
    with days_from_now(800):
        (text,) = warnings(server_certificates(folder))
        require_valid(server_certificates(folder))
    assert text.startswith("tls.crt is valid from")
    assert text.endswith("renew it with 'feddrm deploy renew'")
    with days_from_now(826), refused("tls.crt is valid from", "it has expired, renew it with 'feddrm deploy renew'"):
        require_valid(server_certificates(folder))
    with days_from_now(-3), refused("the clock: it says", "ca.crt", "set this machine's clock"):
        require_valid(server_certificates(folder))


def test_an_expired_authority_is_named_at_both_ends(folder: Path) -> None:
    with days_from_now(3651):
        with refused("ca.crt is valid from", "it has expired", "ask the coordinator"):
            require_valid([site_certificate(folder)])
        with refused("ca.crt is valid from", "it has expired", "make a new project"):
            require_valid(server_certificates(folder))
