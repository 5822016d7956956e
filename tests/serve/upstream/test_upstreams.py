from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import certifi
import httpx
import pytest

from feddrm.io.connection_errors import FOREIGN
from feddrm.serve.settings import GatewaySettings, UpstreamEntry, make_settings
from feddrm.serve.upstream.upstreams import OTHER_FIT, Declined, Upstream, UpstreamFailure, Upstreams
from refusal import refused


@pytest.fixture
def upstream() -> Upstream:
    http = httpx.AsyncClient(base_url="http://127.0.0.1:9")  # nobody listens there
    return Upstream("oslo", UpstreamEntry(url="http://127.0.0.1:9", capacity=2), 2, 0.05, http)


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (ssl.SSLCertVerificationError(1, "[SSL] self-signed certificate in certificate chain"), FOREIGN),
        (ConnectionRefusedError(111, "refused"), "nothing listens there"),
    ],
)
def test_a_failed_health_check_says_why(upstream: Upstream, cause: OSError, words: str) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection failed") from cause

    upstream.http = httpx.AsyncClient(transport=httpx.MockTransport(refuse), base_url="http://127.0.0.1:9")
    asyncio.run(upstream.check())
    assert words in upstream.reason
    answer = httpx.MockTransport(lambda request: httpx.Response(200, stream=httpx.ByteStream(b"{}")))
    upstream.http = httpx.AsyncClient(transport=answer, base_url="http://127.0.0.1:9")
    asyncio.run(upstream.check())
    assert (upstream.healthy, upstream.reason) == (True, ""), "it is back"
    fail(upstream, UpstreamFailure("refused (500)"))
    asyncio.run(upstream.check())
    assert upstream.reason == "refused (500)", "its health says nothing of its answers"


class Clock:
    """Time as a test sets it: real pauses depend on what else the machine does."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("feddrm.serve.upstream.upstreams.time", made)
    return made


def fail(upstream: Upstream, error: Exception | None = None) -> None:
    error = error or TimeoutError()
    with pytest.raises(type(error)), upstream.request():
        raise error


def test_the_circuit_opens_then_tries_one_request_then_closes(upstream: Upstream, clock: Clock) -> None:
    fail(upstream)
    assert (upstream.circuit, upstream.available) == ("closed", True)
    fail(upstream)
    assert (upstream.circuit, upstream.unavailable_because) == ("open", "circuit open")
    clock.now += 0.06
    assert (upstream.circuit, upstream.available) == ("trying", True)
    with upstream.request():
        assert not upstream.available  # one trial at a time
    assert (upstream.circuit, upstream.failures) == ("closed", 0)


def test_a_failed_trial_doubles_the_pause(upstream: Upstream, clock: Clock) -> None:
    fail(upstream)
    fail(upstream)
    clock.now += 0.06
    fail(upstream)
    clock.now += 0.06
    assert upstream.circuit == "open"
    clock.now += 0.06
    assert upstream.circuit == "trying"


def test_requests_that_run_when_the_circuit_opens_are_no_trials(upstream: Upstream, clock: Clock) -> None:
    """Their failures do not prolong the pause, neither during it nor after it."""
    running = [upstream.request() for _ in range(9)]
    for request in running:
        request.__enter__()
    for request in running[:8]:
        request.__exit__(TimeoutError, TimeoutError(), None)
    assert upstream.circuit == "open"
    clock.now += 0.06
    assert upstream.circuit == "trying"
    running[8].__exit__(TimeoutError, TimeoutError(), None)
    assert (upstream.circuit, upstream.available) == ("trying", True)


def test_declined_requests_do_not_count_as_failures(upstream: Upstream) -> None:
    for _ in range(5):
        fail(upstream, Declined("x"))
    assert (upstream.circuit, upstream.failures, upstream.in_flight) == ("closed", 0, 0)


def test_an_upstream_at_capacity_is_unavailable(upstream: Upstream) -> None:
    with upstream.request(), upstream.request():
        assert upstream.unavailable_because == "at capacity"
    assert upstream.available


def test_bad_lists_of_clients_are_errors_and_keys_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, path = make_settings(GatewaySettings), tmp_path / "clients.yaml"
    for text, parts in {
        "": ("expected a mapping", "for each client"),
        "{}": ("lists no clients",),
        "a: {url: ftp://x}": ("client 'a'", "url"),
        "a: {url: 'http://x', capacity: 0}": ("client 'a'", "capacity"),
        "a: {url: 'http://x', speed: 1}": ("client 'a'", "speed"),
        "a: {url: 'http://x', key_env: NO_SUCH_KEY}": ("client 'a'", "NO_SUCH_KEY"),
        "a: {url: 'https://x', ca: nowhere.pem}": ("client 'a'", "ca"),
        "a: {url: 'http://x:port'}": ("client 'a'", "url"),
        "{": ("not YAML",),
    }.items():
        path.write_text(text)
        with refused(*parts):
            Upstreams.read(path, settings)
    with refused("nowhere.yaml"):
        Upstreams.read(tmp_path / "nowhere.yaml", settings)
    monkeypatch.setenv("OSLO_KEY", "secret")
    path.write_text("a: {url: 'http://x', key_env: OSLO_KEY}")
    upstream = Upstreams.read(path, settings)["a"]
    assert upstream.http.headers["Authorization"] == "Bearer secret"
    assert "secret" not in str(upstream.as_dict())


def test_files_of_a_client_are_relative_to_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, path = make_settings(GatewaySettings), tmp_path / "lists" / "clients.yaml"
    trusted = Path(certifi.where())
    (tmp_path / "lists" / "keys").mkdir(parents=True)
    (path.parent / "keys" / "oslo").write_text("secret\n")
    (path.parent / "oslo.pem").write_bytes(trusted.read_bytes())
    monkeypatch.chdir(tmp_path)
    path.write_text("a: {url: 'https://x', ca: oslo.pem, key_file: keys/oslo}")
    for listed in (path, path.relative_to(tmp_path)):
        upstream = Upstreams.read(listed, settings)["a"]
        assert upstream.http.headers["Authorization"] == "Bearer secret"
        assert upstream.entry.ca is not None
        assert upstream.entry.ca.resolve() == path.parent / "oslo.pem"
    path.write_text(f"a: {{url: 'https://x', ca: {trusted}}}")
    assert Upstreams.read(path, settings)["a"].entry.ca == trusted


@pytest.mark.parametrize("entry", ["key_env: OSLO_KEY", "key_file: oslo.key"])
def test_a_line_break_after_a_key_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
    """Secrets of clusters and files end with one. The header would be refused, and the log would show the key."""
    monkeypatch.setenv("OSLO_KEY", "abc\n")
    (tmp_path / "oslo.key").write_text("abc\n")
    path = tmp_path / "clients.yaml"
    path.write_text(f"oslo: {{url: 'http://x', {entry}}}")
    upstream = Upstreams.read(path, make_settings(GatewaySettings))["oslo"]
    assert upstream.http.headers["Authorization"] == "Bearer abc"


def test_clients_that_are_away_have_a_reason(tmp_path: Path) -> None:
    settings, path = make_settings(GatewaySettings), tmp_path / "clients.yaml"
    path.write_text("a: {url: 'http://x'}\nb: {url: 'http://x'}\n")
    upstreams = Upstreams.read(path, settings)
    upstreams["b"].healthy = False
    assert upstreams.away(["a", "b", "c"]) == {1: "unhealthy", 2: "not registered"}
    assert upstreams.away(["a", "b"], without=["a"]) == {0: "left out by the caller", 1: "unhealthy"}
    assert upstreams.away(["a"]) == {}
    assert Upstreams.read(None, settings).away(["a", "b"], without=["a"]) == {0: "left out by the caller"}


@pytest.mark.parametrize(("error", "reason"), [(TimeoutError(), "time-out"), (httpx.ReadError(""), "ReadError")])
def test_an_error_without_words_has_a_reason(upstream: Upstream, error: Exception, reason: str) -> None:
    fail(upstream, error)
    assert upstream.reason == reason


def test_a_change_is_logged_once(upstream: Upstream, caplog: pytest.LogCaptureFixture) -> None:
    def logged() -> list[tuple[str, str | None]]:
        lines = [(record.getMessage(), record.fields.get("reason")) for record in caplog.records]  # type: ignore[attr-defined]
        caplog.clear()
        return lines

    for _ in range(4):
        fail(upstream, UpstreamFailure("refused (500)"))
    assert logged() == [("a client is away", "refused (500)")]
    for _ in range(2):
        with upstream.request():
            pass
    assert logged() == [("a client is back", None)]
    with upstream.request(), upstream.request():  # at capacity
        pass
    assert logged() == []
    for _ in range(2):
        asyncio.run(upstream.check())
    assert logged() == [
        ("a client is away", "health check failed (nothing listens there: is it running, on this host and port?)")
    ]


def test_a_refitted_head_is_away_for_a_router_of_another_fit(upstream: Upstream) -> None:
    upstream.healthy, upstream.fit, upstream.stated = True, "served", {"fit": "served"}
    upstreams = Upstreams(oslo=upstream)
    assert upstreams.away(["oslo"], fit="served") == {}
    assert upstreams.away(["oslo"], fit="challenger") == {0: OTHER_FIT}
    upstream.stated = {}  # a trained model belongs to no fit
    assert upstreams.away(["oslo"], fit="challenger") == {}
