"""Why a connection failed, in words: for the end that calls and for the end that listens."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

PROBE_SECONDS = 3.0
AGAIN_SECONDS = 60.0  # the same reason is logged at most this often: strangers can cause it

CERTIFICATE = {  # by OpenSSL's number of what is wrong with a certificate
    9: "its certificate is not valid yet: compare the clocks of both ends",
    10: "its certificate has expired: renew it there, or set this machine's clock",
    62: "its certificate is for another host name: use a name that is in it, or renew it with this name",
    64: "its certificate is for another address: use a name that is in it, or renew it with this address",
}
FOREIGN = "its certificate is signed by an authority that this end does not trust: compare the authority's certificate"
NOT_TLS = "it does not speak TLS on this port: use http:// if that is intended, or turn on TLS there"
SPEAKS_TLS = "it speaks TLS on this port: use https://"
NO_SUCH_HOST = "the host name is unknown: check its spelling, and this machine's DNS"

HANDSHAKE = {  # by a part of OpenSSL's reason, at the end that listens
    "HTTP_REQUEST": "a caller speaks http to this port, which takes TLS only: it must use https://",
    "CERTIFICATE_EXPIRED": "a caller refuses this certificate as expired: renew it, or set the caller's clock",
    "UNKNOWN_CA": "a caller does not trust this certificate's authority: give the caller the authority's certificate",
    "CERTIFICATE": "a caller refuses this certificate, most likely because of its host name: renew it with that name",
}


def explain(error: BaseException, url: str) -> str:
    """Why a call of ``url`` failed, and the remedy. A call that ended without a word is tried again with TLS."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return CERTIFICATE.get(getattr(cause, "verify_code", 0), FOREIGN)
        if isinstance(cause, ssl.SSLError):
            return NOT_TLS if cause.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE") else str(cause)
        if isinstance(cause, ConnectionRefusedError):
            return "nothing listens there: is it running, on this host and port?"
        if isinstance(cause, socket.gaierror):
            return NO_SUCH_HOST
        if isinstance(cause, TimeoutError):
            return "no answer in time: check host and port, and the firewalls in between"
    if urlsplit(url).scheme == "http" and _speaks_tls(url):
        return SPEAKS_TLS
    return str(error) or type(error).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, and so on. HTTP clients wrap the errors of sockets several times."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        if isinstance(seen, BaseExceptionGroup):
            yield from seen.exceptions
        seen = seen.__cause__ or seen.__context__


def _speaks_tls(url: str) -> bool:
    place = urlsplit(url)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only a question; nothing is sent
    try:
        with socket.create_connection((place.hostname or "", place.port or 80), PROBE_SECONDS) as plain:
            context.wrap_socket(plain, server_hostname=place.hostname).close()
    except (OSError, ValueError):
        return False
    return True


class HandshakeLog(ssl.SSLObject):
    """The listening end's half of a TLS connection. It logs why a handshake failed; asyncio says nothing.

    For ``SSLContext.sslobject_class``. The logger is ``feddrm.tls``.
    """

    def do_handshake(self) -> None:
        """As inherited; a failure is logged and raised again."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            log_handshake(error.reason or "")
            raise


_last_logged: dict[str, float] = {}


def log_handshake(reason: str) -> None:
    """Log OpenSSL's reason in words, where it has any, at most once a minute."""
    words = next((text for part, text in HANDSHAKE.items() if part in reason), None)
    now = time.monotonic()
    if words is not None and now - _last_logged.get(words, -AGAIN_SECONDS) >= AGAIN_SECONDS:
        _last_logged[words] = now
        logging.getLogger("feddrm.tls").warning(words)
