from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from feddrm.serve.settings import ClientEntry, GatewaySettings, make
from feddrm.serve.upstream.upstreams import Declined, Registry, Upstream
from refusal import refused


@pytest.fixture
def peer() -> Upstream:
    return Upstream("oslo", ClientEntry(url="http://127.0.0.1:9", capacity=2), 2, 0.05, httpx.AsyncClient())


def fail(peer: Upstream, error: Exception | None = None) -> None:
    error = error or TimeoutError()
    with pytest.raises(type(error)), peer.request():
        raise error


def test_the_circuit_opens_tries_once_and_closes(peer: Upstream) -> None:
    fail(peer)
    assert (peer.circuit, peer.available) == ("closed", True)
    fail(peer)
    assert (peer.circuit, peer.why_not) == ("open", "circuit open")
    time.sleep(0.06)
    assert (peer.circuit, peer.available) == ("trying", True)
    with peer.request():
        assert not peer.available  # one try at a time
    assert (peer.circuit, peer.failures) == ("closed", 0)


def test_a_failed_try_doubles_the_pause(peer: Upstream) -> None:
    fail(peer)
    fail(peer)
    time.sleep(0.06)
    fail(peer)
    time.sleep(0.06)
    assert peer.circuit == "open"
    time.sleep(0.06)
    assert peer.circuit == "trying"


def test_requests_under_way_when_it_opens_are_no_trials(peer: Upstream) -> None:
    """Whether they fail while the pause lasts or after it."""
    late = [peer.request() for _ in range(9)]
    for request in late:
        request.__enter__()
    for request in late[:8]:
        request.__exit__(TimeoutError, TimeoutError(), None)
    assert peer.circuit == "open"
    time.sleep(0.06)
    assert peer.circuit == "trying"
    late[8].__exit__(TimeoutError, TimeoutError(), None)
    assert (peer.circuit, peer.available) == ("trying", True)


def test_what_does_not_fit_is_not_the_clients_fault(peer: Upstream) -> None:
    for _ in range(5):
        fail(peer, Declined("x"))
    assert (peer.circuit, peer.failures, peer.in_flight) == ("closed", 0, 0)


def test_capacity(peer: Upstream) -> None:
    with peer.request(), peer.request():
        assert peer.why_not == "at capacity"
    assert peer.available


def test_bad_lists_of_clients_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, path = make(GatewaySettings), tmp_path / "clients.yaml"
    for text, parts in {
        "": ("lists no clients",),
        "a: {url: ftp://x}": ("client 'a'", "url"),
        "a: {url: 'http://x', capacity: 0}": ("client 'a'", "capacity"),
        "a: {url: 'http://x', speed: 1}": ("client 'a'", "speed"),
        "a: {url: 'http://x', key_env: NO_SUCH_KEY}": ("client 'a'", "NO_SUCH_KEY"),
        "a: {url: 'https://x', ca: nowhere.pem}": ("client 'a'", "ca"),
        "a: {url: 'http://x:port'}": ("client 'a'", "url"),
        "{": ("no YAML",),
    }.items():
        path.write_text(text)
        with refused(*parts):
            Registry.read(path, settings)
    with refused("nowhere.yaml"):
        Registry.read(tmp_path / "nowhere.yaml", settings)
    monkeypatch.setenv("OSLO_KEY", "secret")
    path.write_text("a: {url: 'http://x', key_env: OSLO_KEY}")
    found = Registry.read(path, settings).peers["a"]
    assert found.http.headers["Authorization"] == "Bearer secret"
    assert "secret" not in str(found.as_dict())
