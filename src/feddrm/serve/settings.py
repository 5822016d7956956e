"""What can be set: by an option of the command, or by an environment variable FEDDRM_SERVE_NAME."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from feddrm.errors import FeddrmError, SettingError

Settings = TypeVar("Settings", bound=BaseSettings)


class ServerSettings(BaseSettings):
    """What gateway and predictor have in common."""

    model_config = SettingsConfigDict(env_prefix="FEDDRM_SERVE_", extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    keys: Path | None = None
    open: bool = False  # listen beyond this machine without keys
    tls_cert: Path | None = None
    tls_key: Path | None = None
    proxy: str = ""  # addresses of proxies whose X-Forwarded-* headers are believed
    max_body_bytes: int = Field(8 * 2**20, ge=1024)
    body_seconds: float = Field(30.0, gt=0)  # until the last byte of a body; before it, of the headers
    send_seconds: float = Field(30.0, gt=0)  # until a caller has read its answer
    max_connections: int = Field(800, ge=1)  # below the 1,024 files that a process may usually open
    max_pixels: int = Field(16 * 10**6, ge=1)
    max_rows: int = Field(1024, ge=1)  # of one request
    max_batch_rows: int = Field(1024, ge=1)
    max_waiting_rows: int = Field(4096, ge=1)
    max_in_flight: int = Field(512, ge=1)
    rate: float = Field(0.0, ge=0)  # requests per second and caller; 0: no limit
    grace_seconds: int = Field(10, ge=0)
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("TLS needs both files: give --tls-cert and --tls-key")
        if self.keys is None and not self.open and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host} can be reached from other machines: give --keys FILE ('feddrm serve-key' makes "
                f"one), or --open to serve anybody"
            )
        return self


class GatewaySettings(ServerSettings):
    """The gateway's own."""

    clients: Path | None = None
    rule: str = "density"
    coverage: float = Field(1.0, gt=0, le=1)
    deadline_seconds: float = Field(10.0, gt=0)  # for one prediction, all fallbacks included
    health_seconds: float = Field(2.0, gt=0)
    failures: int = Field(3, ge=1)  # in a row, until a client's circuit opens
    cool_down_seconds: float = Field(5.0, gt=0)
    audit: str | None = None  # a SQLite file or a postgresql:// URL; None: audit.sqlite in the run's folder
    retention_days: float = Field(30.0, gt=0)
    reload_seconds: float = Field(0.0, ge=0)  # look for a new artifact this often; 0: only when asked
    cors: tuple[str, ...] = ()


class PredictorSettings(ServerSettings):
    """The client predictor's own."""

    port: int = Field(9000, ge=0, le=65535)
    answer: str = "trained"  # or "refit"


class ClientEntry(BaseModel):
    """One client in ``clients.yaml``. ``key_env`` names the environment variable that holds its API key."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(pattern=r"^https?://[^\s]+$")
    key_env: str | None = None
    key_file: Path | None = None
    capacity: int = Field(32, ge=1)
    timeout: float = Field(2.0, gt=0)
    ca: Path | None = None  # certificates to believe, where the client's own authority signed


def make(kind: type[Settings], **given: Any) -> Settings:
    """Settings from the given values, then the environment; a bad one is refused in one line."""
    try:
        return kind(**{key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        raise SettingError(explain(error)) from error
    except SettingsError as error:  # of what is more than a word only: that is FEDDRM_SERVE_CORS
        raise SettingError(f"{error}: give a list such as FEDDRM_SERVE_CORS='[\"https://lab.example\"]'") from error


def explain(error: ValidationError) -> str:
    """The first thing wrong, on one line, without the value (it may be secret, or a whole picture)."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    text = first["msg"].removeprefix("Value error, ")
    return f"{place}: {text}" if place else text


def entry(where: Path, name: str, value: object) -> ClientEntry:
    """One client of ``clients.yaml``."""
    try:
        return ClientEntry.model_validate(value)
    except ValidationError as error:
        raise FeddrmError(f"{where}: client '{name}': {explain(error)}") from error


def is_loopback(host: str) -> bool:
    """Whether it is this machine's own address or name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
