"""Asking a gateway from Python: ``Client("http://127.0.0.1:8080").route("scan.png")``."""

from __future__ import annotations

import json
import mimetypes
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from feddrm.errors import FeddrmError

PATIENCE = 3  # more tries where the gateway says it is busy


class Client:
    """Asks a running gateway. ``key`` is the API key, by default what FEDDRM_KEY holds.

    Samples are a picture file (path or bytes), an array of pixels or rows [n, ...], or a mapping (or a
    list of them) from column names to numbers. ``features`` takes what ``Router.features`` gives.
    """

    def __init__(self, url: str, key: str | None = None, timeout: float = 30.0) -> None:
        try:
            import httpx
        except ImportError as error:
            raise FeddrmError("asking a gateway needs more packages: pip install 'feddrm[serve]'") from error
        key = key or os.environ.get("FEDDRM_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._errors = httpx.HTTPError, httpx.InvalidURL
        try:
            self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=False)
        except self._errors as error:
            raise FeddrmError(f"'{url}' is no address ({error}): give one such as http://127.0.0.1:8080") from error
        self.url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def route(self, x: Any = None, *, features: Any = None, **options: Any) -> list[dict[str, Any]]:
        """A decision per sample; options are rule, coverage, without."""
        found: list[dict[str, Any]] = self._post("/v1/route", x, features, options)["decisions"]
        return found

    def predict(self, x: Any = None, *, features: Any = None, **options: Any) -> list[dict[str, Any]]:
        """An answer per sample; further options are consult and abstain."""
        found: list[dict[str, Any]] = self._post("/v1/predict", x, features, options)["answers"]
        return found

    def clients(self) -> list[dict[str, Any]]:
        """Health and load of the clients."""
        found: list[dict[str, Any]] = self._send("GET", "/v1/clients")["clients"]
        return found

    def reload(self) -> str:
        """Make it read its artifact anew; the version it serves then."""
        return str(self._send("POST", "/v1/admin/reload")["artifact"])

    def _post(self, path: str, x: Any, features: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        if (x is None) == (features is None):
            raise FeddrmError("give samples or features, one of them")
        if isinstance(options.get("without"), str):
            options = {**options, "without": [options["without"]]}
        if isinstance(x, str | Path | bytes):
            content, kind = _picture(x)
            params = {k: ",".join(v) if k == "without" else v for k, v in options.items()}
            return self._send("POST", path, content=content, params=params, headers={"Content-Type": kind})
        first = x[0] if isinstance(x, list | tuple) and x else x
        body: dict[str, Any]
        if features is not None:
            body = {"features": features}
        elif isinstance(first, Mapping):
            body = {"rows": [x] if x is first else x}
        else:
            body = {"inputs": x}
            if str(getattr(first, "dtype", "")).rpartition(".")[2].startswith("float"):
                body["datatype"] = "float32"
        try:
            text = json.dumps({**body, **options}, allow_nan=False, default=_plain, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise FeddrmError(f"this cannot be sent ({error}): give finite numbers") from error
        return self._send("POST", path, content=text.encode(), headers={"Content-Type": "application/json"})

    def _send(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        for tries_left in range(PATIENCE, -1, -1):
            try:
                answer = self._http.request(method, path, **given)
            except self._errors as error:
                raise FeddrmError(
                    f"cannot reach {self.url} ({str(error) or type(error).__name__}): is it running?"
                ) from error
            if answer.status_code != 429 or not tries_left:
                break
            time.sleep(_pause(answer.headers.get("Retry-After", "1")))
        try:
            found: dict[str, Any] | None = answer.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise FeddrmError(f"{self.url} answered {answer.status_code}, and not as a gateway does")
        if answer.status_code >= 400:
            raise FeddrmError(f"{self.url} says: {found.get('error', answer.status_code)}")
        return found


def _pause(text: str) -> float:
    """Seconds to wait; a proxy may give a date instead, or anything."""
    return min(5.0, float(text)) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else 1.0


def _picture(x: str | Path | bytes) -> tuple[bytes, str]:
    if isinstance(x, bytes):
        return x, "image/png"  # the gateway looks at the bytes themselves
    kind = mimetypes.guess_type(str(x))[0] or ""
    try:
        return Path(x).read_bytes(), kind if kind.startswith("image/") else "image/png"
    except OSError as error:
        raise FeddrmError(f"cannot read {x} ({error.strerror}): give a picture file") from error


def _plain(x: Any) -> Any:
    """What JSON has no word for: arrays and tensors, their numbers, other mappings."""
    if isinstance(x, Mapping):
        return dict(x)
    if hasattr(x, "tolist"):
        return x.tolist()
    raise TypeError(f"{type(x).__name__} is neither number nor array")
