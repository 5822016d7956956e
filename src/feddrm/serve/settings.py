"""The settings of gateway and predictor, from command options and environment variables FEDDRM_SERVE_NAME."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from feddrm.checks import ports
from feddrm.errors import SettingError, quoted
from feddrm.registry import listing, nearest
from feddrm.router.router import MAX_AWAY

ASYMMETRIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
Settings = TypeVar("Settings", bound=BaseSettings)
# What to give, by the type of pydantic's error, or by its first word; the braces hold what the error knows.
EXPECTED = {
    "literal_error": "{expected}",
    "greater_than": "more than {gt:.12g}",
    "greater_than_equal": "at least {ge:.12g}",
    "less_than": "less than {lt:.12g}",
    "less_than_equal": "at most {le:.12g}",
    "too_short": "at least {min_length}",
    "too_long": "at most {max_length}",
    "string_too_short": "a text of at least {min_length} characters",
    "string_too_long": "a text of at most {max_length} characters",
    "string_pattern_mismatch": "a text of the form {pattern}",
    "finite_number": "a finite number",
    "int_parsing_size": "a smaller number",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "string": "a text",
    "path": "a path",
    "list": "a list",
    "tuple": "a list",
    "dict": "an object",
    "model": "an object",
}


class OidcSettings(BaseSettings):
    """The issuer whose bearer tokens are accepted, and what a token must have."""

    oidc_issuer: str | None = None
    oidc_audience: str | None = None
    oidc_jwks: str | None = None  # a URL or a file; None: where the issuer says
    oidc_algorithms: str = "RS256,ES256"
    oidc_name_claim: str = "sub"
    oidc_scope_claim: str = "scope"  # also a path: realm_access.roles
    oidc_scope_prefix: str = ""  # before route, predict, outcomes, metrics, admin in the claim
    oidc_required_claims: str = ""  # besides exp, iss, aud and the name
    oidc_leeway_seconds: float = Field(30.0, ge=0, le=600)  # by which clocks may differ
    oidc_refresh_seconds: float = Field(300.0, gt=0)
    oidc_retry_seconds: float = Field(30.0, gt=0)

    @property
    def oidc_algorithm_names(self) -> list[str]:
        return [name.strip() for name in self.oidc_algorithms.split(",")]

    @model_validator(mode="after")
    def _issuer(self) -> Self:
        if (self.oidc_issuer or self.oidc_audience or self.oidc_jwks) and not (self.oidc_issuer and self.oidc_audience):
            raise ValueError("tokens need both --oidc-issuer and --oidc-audience: give both")
        for name in self.oidc_algorithm_names:
            if name not in ASYMMETRIC:
                raise ValueError(f"oidc_algorithms: '{name[:32]}' is not allowed: give some of {', '.join(ASYMMETRIC)}")
        if self.oidc_jwks is None and self.oidc_issuer is not None and not is_safe_url(self.oidc_issuer):
            raise ValueError(
                "oidc_issuer: an issuer that is no https:// URL cannot say where its keys are: give --oidc-jwks"
            )
        if "://" in (self.oidc_jwks or "") and not is_safe_url(self.oidc_jwks or ""):
            raise ValueError("oidc_jwks: keys of an issuer are read by https only: give an https:// URL or a file")
        return self


class HttpSettings(OidcSettings):
    """The settings that gateway and predictor have in common."""

    model_config = SettingsConfigDict(env_prefix="FEDDRM_SERVE_", extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(ports.GATEWAY, ge=0, le=65535)
    grpc_port: int | None = Field(None, ge=0, le=65535)  # of the Open Inference Protocol's gRPC form; None: none
    keys: Path | None = None
    open: bool = False  # listen on other addresses than loopback without keys
    tls_cert: Path | None = None
    tls_key: Path | None = None
    proxy: str = ""  # addresses of proxies whose X-Forwarded-* headers are trusted
    max_body_bytes: int = Field(8 * 2**20, ge=1024)
    body_seconds: float = Field(30.0, gt=0)  # for the headers to arrive, and then for the body
    send_seconds: float = Field(30.0, gt=0)  # for the caller to read a response
    max_connections: int = Field(800, ge=1)  # below the usual limit of 1,024 open files per process
    max_pixels: int = Field(16 * 10**6, ge=1)
    max_rows: int = Field(1024, ge=1)  # samples of one request
    max_batch_rows: int = Field(1024, ge=1)
    max_waiting_rows: int = Field(4096, ge=1)
    max_in_flight: int = Field(512, ge=1)
    views: int = Field(1, ge=1)  # crops and mirror images of a sample that are averaged
    rate: float = Field(0.0, ge=0)  # requests per second and address; 0: no limit
    grace_seconds: int = Field(10, ge=0)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    trace_endpoint: str | None = Field(None, pattern=r"^https?://[^\s]+$")  # OTLP over HTTP, such as http://host:4318
    trace_rate: float = Field(20.0, ge=0)  # requests per second that are recorded at most; 0: no limit

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("TLS needs both files: give --tls-cert and --tls-key")
        if not (self.protected or self.open or is_loopback(self.host)):
            raise ValueError(
                f"host {self.host} can be reached from other machines: give --keys FILE ('feddrm serve-key' makes "
                f"one) or --oidc-issuer, or --open to serve anybody"
            )
        return self

    @property
    def protected(self) -> bool:
        """Whether a caller needs a key or a token."""
        return self.keys is not None or self.oidc_issuer is not None


class GatewaySettings(HttpSettings):
    """The gateway's settings."""

    clients: Path | None = None
    rule: str = "density"
    costs: dict[str, float] = Field(default_factory=dict)  # of asking clients, by name; for the rule competence
    coverage: float = Field(1.0, gt=0, le=1)
    max_away: float = Field(MAX_AWAY, ge=0, le=1)  # share of the probability that clients that are away may hold
    deadline_seconds: float = Field(10.0, gt=0)  # for one prediction, including all fallbacks
    health_seconds: float = Field(2.0, gt=0)
    failures: int = Field(3, ge=1)  # in a row that open a client's circuit
    cool_down_seconds: float = Field(5.0, gt=0)
    audit: str | None = None  # a SQLite file or a postgresql:// URL; None: audit.sqlite in the run's folder
    retention_days: float = Field(30.0, gt=0)
    reload_seconds: float = Field(0.0, ge=0)  # how often to look for a new artifact; 0: only on request
    cors: tuple[str, ...] = ()
    use_log: Path | None = None  # a SQLite file of answers and their outcomes; None: none is kept
    max_uses: int = Field(200_000, ge=100)  # answers that it keeps
    record_features: int = Field(0, ge=0)  # of how many of the latest answers it keeps the features
    challenger: Path | None = None  # a run or a router's folder
    challenger_share: float = Field(0.0, ge=0, lt=1)  # of the requests; 0: shadow
    drift: bool = False  # compare queries with the training data

    @model_validator(mode="after")
    def _learning(self) -> Self:
        if self.record_features and self.use_log is None:
            raise ValueError("features are recorded in the use log: give --use-log FILE")
        if self.challenger_share and self.challenger is None:
            raise ValueError("a share of the requests needs an artifact that answers them: give --challenger")
        if self.drift and self.views > 1:
            raise ValueError(f"views={self.views}: drift compares single views: leave out --drift or --views")
        return self


class PredictorSettings(HttpSettings):
    """The predictor's settings."""

    port: int = Field(ports.PREDICTOR, ge=0, le=65535)
    answer: str = "trained"  # or "refit"


class UpstreamEntry(BaseModel):
    """One client in ``clients.yaml``. ``key_env`` names the environment variable that holds its API key."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(pattern=r"^https?://[^\s]+$")
    key_env: str | None = None
    key_file: Path | None = None
    capacity: int = Field(32, ge=1)
    timeout: float = Field(2.0, gt=0)
    ca: Path | None = None  # certificates to trust, if the client has its own authority


def make_settings(kind: type[Settings], **given: Any) -> Settings:
    """Settings from the given values (None: not given), then from the environment; a bad value is a one-line error."""
    try:
        return kind(**{key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        raise SettingError(first_problem(error.errors(), kind.model_fields, secret=True)) from error
    except SettingsError as error:  # an environment variable that is no JSON; FEDDRM_SERVE_CORS alone must be JSON
        raise SettingError(f"{error}: give a list such as FEDDRM_SERVE_CORS='[\"https://lab.example\"]'") from error


def first_problem(problems: Sequence[Mapping[str, Any]], known: Collection[str] = (), *, secret: bool = False) -> str:
    """The first of pydantic's errors on one line: the place, the value, and what to give instead.

    ``known`` are the names that may be given. Where a value may be ``secret``, only a number is repeated.
    """
    # A name that is misspelt is also missing.
    first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
    kind, value, context = first["type"], first["input"], first.get("ctx", {})
    place = ".".join(str(part)[:64] for part in first["loc"])
    expected = EXPECTED.get(kind) or EXPECTED.get(kind.partition("_")[0])
    if kind == "extra_forbidden":
        return f"unknown option '{place}'{nearest(place, known)} {listing(known)}"
    if kind == "missing":
        return f"{place} is missing: give it"
    if kind == "json_invalid":
        return f"the body is no JSON ({context['error']}): check it"
    if expected is None:  # an error of our own, which says both
        text = str(first["msg"]).removeprefix("Value error, ")
        return f"{place}: {text}" if place else text
    if kind in ("too_short", "too_long"):
        given = f" has {len(value)} entries"
    else:
        given = "" if secret and not isinstance(value, int | float) else f" is {as_given(value)}"
    return f"{place or ('it' if secret else 'the body')}{given}: give {expected.format(**context)}"


def as_given(value: object) -> str:
    """A value of a JSON body, for an error message. Lists and objects are named only: they may be long."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return json.dumps(value) if value is None or isinstance(value, bool) else quoted(value)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine's loopback address or name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_safe_url(text: str) -> bool:
    """Whether nobody between can change what a URL answers: by https, or by http on this machine."""
    try:
        url = urlsplit(text)
        host = url.hostname or ""
        return bool(host) and (url.scheme == "https" or (url.scheme == "http" and is_loopback(host)))
    except ValueError:
        return False
