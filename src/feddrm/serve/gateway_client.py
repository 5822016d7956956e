"""A Python client of the gateway: ``GatewayClient("http://127.0.0.1:8080").route("scan.png")``."""

from __future__ import annotations

import json
import mimetypes
import os
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from feddrm.errors import FeddrmError, FieldProblem, TableError
from feddrm.io.connection_errors import explain
from feddrm.serve.auth import sendable_key
from feddrm.serve.http.http_session import CALL_ERRORS, HttpSession
from feddrm.typed_settings import typed_arguments

RETRIES = 3  # while the gateway answers that it is busy


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    """Whether it is a list of answers, decisions or clients, as a gateway has them."""
    return isinstance(value, list) and all(isinstance(entry, dict) and "client" in entry for entry in value)


# The fields that a reply must have, by path, and how each is checked.
FORMS: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    "/v1/route": {"decisions": _is_list},
    "/v1/predict": {"request_id": _is_text, "answers": _is_list},
    "/v1/outcomes": {"stored": lambda value: isinstance(value, int)},
    "/v1/clients": {"clients": _is_list},
    "/v1/schema": {
        "schema": lambda value: value is None or isinstance(value, dict),
        "inputs": lambda value: value is None or (isinstance(value, list) and all(map(_is_text, value))),
    },
    "/v1/admin/reload": {"artifact": _is_text},
    "/v1/admin/promote": {"artifact": _is_text},
    "/v1/admin/rollback": {"artifact": _is_text},
}


class GatewayClient:
    """Calls a running gateway. ``key`` is the API key; default: the environment variable FEDDRM_KEY.

    ``ca`` is the certificate (PEM) of the authority that signed the gateway's, where that is no public one.

    Samples are a picture file (path or bytes), an array of pixels or rows [n, ...], or a mapping (or a list of
    mappings) from column names to values: raw ones if :meth:`schema` has a schema, otherwise numbers. ``features`` is
    the result of ``Router.features``.

    Example:
        >>> with feddrm.GatewayClient("http://127.0.0.1:8000") as gateway:
        ...     answer = gateway.predict("scan.png")[0]
        >>> [asked["client"] for asked in answer["answered"]] == [answer["client"]]
        True
    """

    @typed_arguments
    def __init__(self, url: str, key: str | None = None, timeout: float = 30.0, ca: str | Path | None = None) -> None:
        key = sendable_key(key or os.environ.get("FEDDRM_KEY", ""), "--key or FEDDRM_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            tls = None if ca is None else ssl.create_default_context(cafile=ca)
        except OSError as error:  # ssl's own errors are OSErrors
            raise FeddrmError(f"cannot read the certificate {ca} ({error}): give the authority's PEM file") from error
        self._http = HttpSession(url, headers, timeout, tls)
        self.url = url

    def __repr__(self) -> str:
        return f"GatewayClient({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the gateway."""
        self._http.close()

    def route(self, x: Any = None, *, features: Any = None, **options: Any) -> list[dict[str, Any]]:
        """One decision per sample, by ``rule``, ``coverage``, ``without``, ``max_away``, ``top``, ``why`` and ``over``.

        ``why=True`` adds the terms that made the client likelier than the runner-up, or than the client ``over``.
        """
        return list(self._post("/v1/route", x, features, options)["decisions"])

    def predict(self, x: Any = None, *, features: Any = None, **options: Any) -> list[dict[str, Any]]:
        """One answer per sample. The options are those of :meth:`route`, ``consult``, ``abstain`` and ``label_miss``.

        ``label_probability`` is how sure the clients are of the label, ``client_probability`` how sure the router is of
        the client. All are None where the router abstains; ``abstain="answer"`` asks for them all the same.

        ``request_id`` and ``place`` of an answer are what :meth:`report_outcome` needs.
        """
        content = self._post("/v1/predict", x, features, options)
        ids = {"request_id": content["request_id"]}
        return [{**answer, **ids, "place": place} for place, answer in enumerate(content["answers"])]

    def report_outcome(
        self, request_id: str, label: str | int, place: int | None = None, caller: str | None = None
    ) -> bool:
        """Report the true label of an answer; whether it was new. ``caller`` as for :meth:`report_outcomes`."""
        return self.report_outcomes([{"request_id": request_id, "label": label, "place": place}], caller) == 1

    def report_outcomes(self, outcomes: Sequence[Mapping[str, Any]], caller: str | None = None) -> int:
        """Report the true labels of answers, each with ``request_id``, ``label``, ``place``; how many were new.

        ``caller`` is who got the answers, if that was another key. Yours needs the scope ``outcomes`` then.
        """
        text = json.dumps({"outcomes": [dict(one) for one in outcomes]}, default=_to_json)
        return int(self._send("POST", "/v1/outcomes", text.encode(), {"caller": caller})["stored"])

    def clients(self) -> list[dict[str, Any]]:
        """Health and load of the clients."""
        return list(self._send("GET", "/v1/clients")["clients"])

    def schema(self) -> dict[str, Any]:
        """The router's table schema (None without one), the names of its inputs, and made-up example rows."""
        return self._send("GET", "/v1/schema")

    def reload(self) -> str:
        """Make the gateway read its artifact again; returns the version that it serves then."""
        return str(self._send("POST", "/v1/admin/reload")["artifact"])

    def promote(self) -> str:
        """Make the gateway's challenger answer all requests; returns its version."""
        return str(self._send("POST", "/v1/admin/promote")["artifact"])

    def rollback(self) -> str:
        """Make the gateway give up its challenger, or a promoted artifact; returns the version that it serves then."""
        return str(self._send("POST", "/v1/admin/rollback")["artifact"])

    def _post(self, path: str, x: Any, features: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        if (x is None) == (features is None):
            raise FeddrmError("give samples or features, one of them")
        if isinstance(options.get("without"), str):
            options = {**options, "without": [options["without"]]}
        if isinstance(x, str | Path | bytes):
            content, content_type = _picture(x)
            params = {k: ",".join(v) if k == "without" else v for k, v in options.items()}
            return self._send("POST", path, content, params, content_type)
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
            text = json.dumps({**body, **options}, allow_nan=False, default=_to_json, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise FeddrmError(f"this cannot be sent ({error}): give finite numbers") from error
        return self._send("POST", path, text.encode())

    def _send(self, method: str, path: str, *request: Any) -> dict[str, Any]:
        """Call the gateway; ``request`` as for :meth:`HttpSession.call`."""
        for retries_left in range(RETRIES, -1, -1):
            try:
                reply = self._http.call(method, path, *request)
            except CALL_ERRORS as error:
                raise FeddrmError(f"cannot reach {self.url}: {explain(error, self.url)}") from error
            if reply.status != 429 or not retries_left:
                break
            time.sleep(_retry_seconds(reply.headers.get("Retry-After", "1")))
        try:
            content: dict[str, Any] | None = json.loads(reply.body)
        except ValueError:
            content = None
        unlike = f"{self.url} answered {reply.status}, and not as a gateway does: check the address"
        if not isinstance(content, dict):
            raise FeddrmError(unlike)
        if fields := content.get("fields"):
            try:
                problems = [FieldProblem(**field) for field in fields]
            except TypeError as error:
                raise FeddrmError(unlike) from error
            raise TableError(problems, lambda row: f"{self.url} says: row {row}")
        if reply.status >= 400:
            raise FeddrmError(f"{self.url} says: {content.get('error', reply.status)}")
        if not all(name in content and is_valid(content[name]) for name, is_valid in FORMS[path].items()):
            raise FeddrmError(unlike)
        return content


def _retry_seconds(text: str) -> float:
    """Seconds to wait, at most 5; 1 where a proxy gives a date or anything else instead."""
    return min(5.0, float(text)) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else 1.0


def _picture(x: str | Path | bytes) -> tuple[bytes, str]:
    """A picture's bytes and content type. The gateway recognises the format itself, so any picture type will do."""
    if isinstance(x, bytes):
        return x, "image/png"
    guessed = mimetypes.guess_type(str(x))[0] or ""
    try:
        return Path(x).read_bytes(), guessed if guessed.startswith("image/") else "image/png"
    except OSError as error:
        raise FeddrmError(f"cannot read {x} ({error.strerror}): give a picture file") from error


def _to_json(x: Any) -> Any:
    """Arrays, tensors, their numbers and other mappings as types that JSON knows."""
    if isinstance(x, Mapping):
        return dict(x)
    if hasattr(x, "tolist"):
        return x.tolist()
    raise TypeError(f"{type(x).__name__} is neither number nor array")
