"""Who sent a bearer token: the signature and the claims of a JSON Web Token, checked by PyJWT."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jwt

from feddrm.errors import SettingError
from feddrm.serve.auth import SCOPES, TOKEN_PREFIX, Caller, IssuerDown, TokenRefused
from feddrm.serve.oidc.issuer_keys import IssuerKeys
from feddrm.serve.settings import OidcSettings

LONGEST = 2**14  # bytes of a token
ALGORITHM = "its algorithm is not allowed"
REASONS: dict[type[Exception], str] = {
    jwt.ExpiredSignatureError: "it has expired",
    jwt.ImmatureSignatureError: "it is not valid yet: compare the clocks of issuer and gateway",
    jwt.InvalidAudienceError: "it is for another audience",
    jwt.InvalidIssuerError: "it is of another issuer",
    jwt.InvalidAlgorithmError: ALGORITHM,
    jwt.InvalidSignatureError: "its signature is wrong",
    jwt.InvalidKeyError: "its key cannot be used",  # too short, or of another curve
}


class TokenVerifier:
    """Turns tokens of one issuer into callers."""

    def __init__(self, settings: OidcSettings, on_state: Callable[[bool], None] | None = None) -> None:
        assert settings.oidc_issuer is not None
        self.settings = settings
        self.algorithms = tuple(settings.oidc_algorithm_names)
        self.keys = IssuerKeys(
            settings.oidc_jwks,
            settings.oidc_refresh_seconds,
            settings.oidc_retry_seconds,
            on_state,
            settings.oidc_issuer,
        )
        further = {name.strip() for name in settings.oidc_required_claims.split(",")} - {""}
        self.required = sorted({"exp", "iss", "aud", settings.oidc_name_claim} | further)

    async def verify(self, token: str) -> Caller:
        """The caller whose token this is; :class:`TokenRefused` with the reason otherwise."""
        if len(token) > LONGEST:
            raise TokenRefused("it is too long")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError) as error:
            raise TokenRefused("it is malformed") from error
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in self.algorithms:
            raise TokenRefused(ALGORITHM)
        if not isinstance(kid, str):
            raise TokenRefused("it does not name its key (kid)")
        key = await self.keys.find(kid)
        if key is None and not self.keys:
            raise IssuerDown("the keys of the issuer cannot be read now: try again in a while")
        if key is None:
            raise TokenRefused("the issuer has no key of this name (kid)")
        if not str(algorithm).startswith(key.algorithms):  # the key decides, not the sender
            raise TokenRefused(ALGORITHM)
        return self._caller(self._claims(token, key.key, str(algorithm)))

    def _claims(self, token: str, key: Any, algorithm: str) -> Mapping[str, Any]:
        settings = self.settings
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=settings.oidc_audience,
                issuer=settings.oidc_issuer,
                leeway=settings.oidc_leeway_seconds,
                options={"require": self.required, "enforce_minimum_key_length": True},
            )
        except jwt.MissingRequiredClaimError as error:
            raise TokenRefused(f"it lacks the claim '{error.claim}'") from error
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
            raise TokenRefused(REASONS.get(type(error), "it is malformed")) from error

    def _caller(self, claims: Mapping[str, Any]) -> Caller:
        given = _claim(claims, self.settings.oidc_scope_claim)
        words = given.split() if isinstance(given, str) else given if isinstance(given, list) else []
        prefix = self.settings.oidc_scope_prefix
        try:
            name = TOKEN_PREFIX + claims[self.settings.oidc_name_claim]
            return Caller(name, frozenset(scope for scope in SCOPES if prefix + scope in words))
        except (KeyError, TypeError, SettingError) as error:
            raise TokenRefused(f"its claim '{self.settings.oidc_name_claim}' is no name") from error


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, or by a path of names with dots between them: ``realm_access.roles``."""
    value: Any = claims
    if name in claims:
        return claims[name]
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
