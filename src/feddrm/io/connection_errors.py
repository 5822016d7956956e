"""Why a connection failed, in words: for the end that calls and for the end that listens."""

from __future__ import annotations

import datetime
import logging
import re
import socket
import ssl
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

PROBE_SECONDS = 3.0
AGAIN_SECONDS = 60.0  # the same reason is logged at most this often: strangers can cause it

NOT_YET, EXPIRED = 9, 10  # OpenSSL's numbers of what is wrong with a certificate
OLD_AUTHORITY = (
    "the authority's certificate that this end trusts has expired: get a new one, or set this machine's clock"
)
EARLY_AUTHORITY = "the authority's certificate that this end trusts is not valid yet: compare the clocks of both ends"
CERTIFICATE = {
    NOT_YET: "its certificate is not valid yet: compare the clocks of both ends",
    EXPIRED: "its certificate has expired: renew it there, or set this machine's clock",
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
    "CERTIFICATE": "a caller refuses this certificate: it is not valid yet by the caller's clock, or the caller uses a "
    "host name that is not in it: compare the clocks, or renew it with that name",
}


def explain(error: BaseException, url: str) -> str:
    """Why a call of ``url`` failed, and the remedy. A call that ended without a word is tried again with TLS."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            code = getattr(cause, "verify_code", 0)
            return _dates_in_words(url, code) if code in (NOT_YET, EXPIRED) else CERTIFICATE.get(code, FOREIGN)
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


def certificate_dates(pem: str) -> tuple[datetime.datetime, datetime.datetime]:
    """From when to when a certificate (PEM) is valid; of several the first. Text without one is a ValueError.

    Read by the standard library alone: a gateway has no other package that reads certificates.
    """
    block = re.search("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", pem, re.DOTALL)
    der = ssl.PEM_cert_to_DER_cert(block[0] if block else pem)
    fields = _elements(_elements(_elements(der)[0][1])[0][1])  # of the signed part of the certificate
    validity = fields[4 if fields[0][0] == 0xA0 else 3][1]  # after version, which may be absent, number, kind, issuer
    begin, end = (
        datetime.datetime.strptime(text.decode(), f"%{'y' if tag == 0x17 else 'Y'}%m%d%H%M%S%z")
        for tag, text in _elements(validity)
    )
    return begin, end


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """The tag and the content of every element in DER, one after the other."""
    found: list[tuple[int, bytes]] = []
    while len(der) > 1:
        more = der[1] & 0x7F if der[1] & 0x80 else 0  # the bytes of a long length
        begin = 2 + more
        end = begin + (int.from_bytes(der[2:begin], "big") if more else der[1])
        found.append((der[0], der[begin:end]))
        der = der[end:]
    return found


def _dates_in_words(url: str, code: int) -> str:
    """Whose certificate is out of its dates: the server's own, or the authority's. OpenSSL does not tell."""
    place = urlsplit(url)
    try:
        pem = ssl.get_server_certificate((place.hostname or "", place.port or 443), timeout=PROBE_SECONDS)
        begin, end = certificate_dates(pem)
    except (OSError, ValueError, IndexError):  # behind a proxy, say
        return CERTIFICATE[code]
    now = datetime.datetime.now(datetime.UTC)
    if begin <= now <= end:
        return OLD_AUTHORITY if code == EXPIRED else EARLY_AUTHORITY
    date = f" (it is valid from {begin:%Y-%m-%d} to {end:%Y-%m-%d})"
    what, _, remedy = CERTIFICATE[code].partition(":")
    return f"{what}{date}:{remedy}"


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
