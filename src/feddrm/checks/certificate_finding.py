"""What the dates of a certificate say: valid, soon to be renewed, expired, or not valid yet."""

from __future__ import annotations

import datetime
from pathlib import Path

from feddrm.checks.findings import OK, PROBLEM, WARNING, Finding
from feddrm.errors import FeddrmError
from feddrm.io.connection_errors import certificate_dates

SOON_DAYS = 30


def certificate_finding(path: Path, remedy: str) -> Finding:
    """The dates of a certificate (PEM). ``remedy`` is what to do when it ends soon, or has expired."""
    try:
        begin, end = certificate_dates(path.read_text())
    except (OSError, ValueError, IndexError) as error:
        raise FeddrmError(f"cannot read the certificate {path} ({error}): copy it again") from error
    now = datetime.datetime.now(datetime.UTC)
    dates = f"{path.name} is valid from {begin:%Y-%m-%d} to {end:%Y-%m-%d}"
    if now < begin:
        return Finding("clock", PROBLEM, f"it says {now:%Y-%m-%d %H:%M} UTC, and {dates}: set this machine's clock")
    if now > end:
        return Finding("certificate", PROBLEM, f"{dates}: it has expired, {remedy}")
    if (end - now).days < SOON_DAYS:
        return Finding("certificate", WARNING, f"{dates}: it ends soon, {remedy}")
    return Finding("certificate", OK, dates)
