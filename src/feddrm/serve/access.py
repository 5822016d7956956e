"""Who may ask: by API key, by token of an issuer, or anybody where neither is set. HTTP and gRPC both ask here."""

from __future__ import annotations

from collections.abc import Callable

from feddrm.errors import FeddrmError
from feddrm.serve.auth import ApiKeys, Caller, IssuerDown, TokenRefused
from feddrm.serve.settings import HttpSettings

BEARER, API_KEY = "bearer", "x-api-key"
NO_KEY = "none was sent: send 'Authorization: Bearer KEY' ('feddrm query' takes --key or FEDDRM_KEY)"
NO_TOKEN = "none was sent: send 'Authorization: Bearer TOKEN' ('feddrm query' takes --key or FEDDRM_KEY)"
UNKNOWN_KEY = "this API key is unknown here: ask for one of this address"
NO_EXTRA = "tokens of an OIDC issuer need one more package: pip install 'feddrm[oidc]'"


class AccessRefused(FeddrmError):
    """Why a request is refused, with its HTTP status: 401, 403 or 503. ``caller`` is for the log."""

    def __init__(self, status: int, text: str, caller: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.caller, self.headers = status, caller, headers or {}


class Access:
    """The keys and the issuer that gateway or predictor accept.

    ``on_issuer`` is told whether the issuer's keys could be read.
    """

    def __init__(self, settings: HttpSettings, on_issuer: Callable[[bool], None] | None = None) -> None:
        self.keys = None if settings.keys is None else ApiKeys(settings.keys)
        self.tokens = None
        if settings.oidc_issuer is not None:
            try:
                from feddrm.serve.oidc.tokens import TokenVerifier
            except ImportError as error:
                raise FeddrmError(f"{NO_EXTRA} ({error})") from error
            self.tokens = TokenVerifier(settings, on_issuer)

    async def start(self) -> None:
        """Read the issuer's keys before the first request; the log says if that fails."""
        if self.tokens is not None:
            await self.tokens.keys.refresh()

    async def authorise(self, scheme: str, token: str, scope: str) -> str:
        """The name of the caller ('' where anybody may ask); :class:`AccessRefused` without a right to the scope."""
        if self.keys is None and self.tokens is None:
            return ""
        caller, what = await self._identify(scheme, token)
        if not caller.may(scope):
            text = f"the {what} '{caller.name}' has no scope '{scope}': ask for one that has"
            raise AccessRefused(403, text, caller.name)
        return caller.name

    async def _identify(self, scheme: str, token: str) -> tuple[Caller, str]:
        if self.tokens is not None and scheme == BEARER and (self.keys is None or "." in token):  # keys have no dots
            return await self._token_caller(token), "token of"
        if self.keys is None:
            raise _unknown(f"no valid token: {NO_TOKEN}", "(no token)")
        caller = self.keys.find(token) if token else None
        if caller is None:
            reason, shown = (UNKNOWN_KEY, "(unknown key)") if token else (NO_KEY, "(no key)")
            raise _unknown(f"no valid API key: {reason}", shown)
        return caller, "key"

    async def _token_caller(self, token: str) -> Caller:
        assert self.tokens is not None
        try:
            return await self.tokens.verify(token)
        except TokenRefused as refusal:
            text = f"no valid token: {refusal}: get a new one from its issuer"
            raise _unknown(text, "(refused token)", ' error="invalid_token"') from refusal
        except IssuerDown as error:
            raise AccessRefused(503, str(error), "(token)", {"Retry-After": "5"}) from error


def credentials(authorization: str, api_key: str) -> tuple[str, str]:
    """Scheme and token of a request, from its ``Authorization`` and ``X-API-Key``; two empty texts without any."""
    if authorization[:7].lower() == "bearer ":
        return BEARER, authorization[7:].strip()
    return (API_KEY, api_key) if api_key else ("", "")


def _unknown(text: str, caller: str, challenge: str = "") -> AccessRefused:
    return AccessRefused(401, text, caller, {"WWW-Authenticate": f"Bearer{challenge}"})
