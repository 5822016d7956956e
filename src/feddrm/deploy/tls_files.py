"""The certificates in the server's folder and in a site's: what their dates say, with the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from feddrm.checks.certificate_finding import certificate_finding
from feddrm.checks.findings import OK, PROBLEM, Finding
from feddrm.errors import FeddrmError

AUTHORITY, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
RENEW = "renew it with 'feddrm deploy renew'"
NEW_PROJECT = "make a new project: all sites need the new authority"
ASK_FOR_IT = "ask the coordinator for a new one"


def server_certificates(folder: Path) -> list[Finding]:
    """The dates of the authority's certificate and of the server's own."""
    return [certificate_finding(folder / AUTHORITY, NEW_PROJECT), certificate_finding(folder / CERTIFICATE, RENEW)]


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
