"""The certificate of a running server: renewed files are taken up without a restart, and old ones are warned of."""

from __future__ import annotations

import contextlib
import logging
import ssl
from pathlib import Path

from feddrm.checks.certificate_finding import certificate_finding
from feddrm.checks.findings import OK
from feddrm.errors import FeddrmError
from feddrm.serve.auth import file_state
from feddrm.serve.settings import HttpSettings

log = logging.getLogger("feddrm.serve")


class CertificateFiles:
    """The PEM files of a certificate and its key; says when they were renewed."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.certificate, self.key = certificate, key
        self._seen = self._states()
        self._level = OK

    def renewed(self) -> bool:
        """Whether the files have changed since the last call, and belong together.

        They are tried elsewhere first: in a context that is in use, a wrong key would leave a certificate without one.
        """
        if (states := self._states()) == self._seen:
            return False
        self._seen = states
        try:
            self._load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except (OSError, ValueError) as error:  # ssl's own errors are OSErrors
            fields = {"certificate": str(self.certificate), "key": str(self.key), "reason": str(error)}
            log.error("the renewed certificate cannot be used, the old one stays", extra={"fields": fields})
            return False
        log.info("the certificate was renewed", extra={"fields": {"certificate": str(self.certificate)}})
        return True

    def renew(self, context: ssl.SSLContext) -> None:
        """Give new connections of this context the renewed certificate, if there is one; open ones keep theirs."""
        if self.renewed():
            with contextlib.suppress(OSError):  # changed once more: the next call sees it
                self._load_into(context)
        self.warn()

    def warn(self) -> None:
        """Log once that callers refuse the certificate, by its dates, or will soon."""
        try:
            finding = certificate_finding(self.certificate, "renew it with its key, no restart is needed")
        except FeddrmError:  # it cannot be read: the start refuses it, and `renewed` logs it
            return
        if finding.level != self._level and finding.level != OK:
            log.warning(finding.text, extra={"fields": {"certificate": str(self.certificate)}})
        self._level = finding.level

    def _load_into(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self.certificate, self.key, password="")  # with None, a terminal would be asked for one

    def _states(self) -> list[tuple[int, ...]]:
        return [file_state(path) for path in (self.certificate, self.key)]


def certificate_files(settings: HttpSettings) -> CertificateFiles | None:
    """The files that the settings name; None without TLS."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return CertificateFiles(settings.tls_cert, settings.tls_key)
