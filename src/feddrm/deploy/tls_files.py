"""The certificates in the server's folder and in a site's: their dates and the server's key, with the remedy."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from pathlib import Path

from feddrm.checks.certificate_finding import certificate_finding
from feddrm.checks.findings import OK, PROBLEM, Finding
from feddrm.errors import FeddrmError

AUTHORITY, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
RENEW, RENEW_BOTH = "renew it with 'feddrm deploy renew'", "make new ones with 'feddrm deploy renew'"
NEW_PROJECT = "make a new project: all sites need the new authority"
ASK_FOR_IT = "ask the coordinator for a new one"


def server_certificates(folder: Path) -> list[Finding]:
    """The dates of the authority's certificate and of the server's own."""
    return [certificate_finding(folder / AUTHORITY, NEW_PROJECT), certificate_finding(folder / CERTIFICATE, RENEW)]


def require_pair(folder: Path) -> None:
    """Refuse a certificate and a key that do not belong together: Flower's process would end again and again."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / CERTIFICATE, folder / KEY, password="")
    except OSError as error:  # ssl.SSLError is one
        text = f"{folder / KEY} is not the key of {CERTIFICATE}: put both back from a copy, or {RENEW_BOTH}"
        raise FeddrmError(text) from error


def site_certificate(folder: Path) -> Finding:
    """The dates of the authority's certificate, which a site trusts."""
    return certificate_finding(folder / AUTHORITY, ASK_FOR_IT)


def require_valid(findings: Iterable[Finding]) -> None:
    """Refuse to start with a certificate that nobody would accept."""
    for finding in findings:
        if finding.level == PROBLEM:
            raise FeddrmError(f"{'the clock: ' if finding.what == 'clock' else ''}{finding.text}")


def warnings(findings: Iterable[Finding]) -> list[str]:
    """What the server's operator must be told while it runs: what has expired, or will soon."""
    return [finding.text for finding in findings if finding.what == "certificate" and finding.level != OK]
