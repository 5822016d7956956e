"""The commands that serve: their errors are one line with the right exit code, and leave no file behind."""

from __future__ import annotations

import json
import sys
from http.client import HTTPMessage
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="pip install 'feddrm[serve]' to run this")

from cli.conftest import stated_defaults
from feddrm.cli.app import main
from feddrm.serve.auth import ApiKeys
from feddrm.serve.http.http_session import HttpReply, HttpSession
from feddrm.serve.settings import GatewaySettings, PredictorSettings


def feddrm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["feddrm", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    out = capsys.readouterr()
    return int(end.value.code or 0), out.out, out.err


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (["serve", "nowhere"], 1, ["nowhere", "no router", "fit-router"]),
        (["serve", "nowhere", "--port", "99999"], 2, ["port"]),
        (["serve", "nowhere", "--grpc-port", "99999"], 2, ["grpc_port"]),
        (["serve", "nowhere", "--host", "0.0.0.0"], 2, ["0.0.0.0", "--keys", "--open"]),
        (["serve", "nowhere", "--tls-key", "k.pem"], 2, ["--tls-cert"]),
        (["serve", "nowhere", "--demo", "--clients", "c.yaml"], 2, ["--demo"]),
        (["serve", "nowhere", "--coverage", "0"], 2, ["coverage"]),
        (["serve", "nowhere", "--views", "0"], 2, ["views"]),
        (["serve", "nowhere", "--record-features", "9"], 2, ["--use-log"]),
        (["serve", "nowhere", "--share", "0.1"], 2, ["--challenger"]),
        (["serve", "nowhere", "--challenger", "x", "--share", "1"], 2, ["challenger_share"]),
        (["serve", "nowhere", "--drift", "--views", "2"], 2, ["views=2", "--drift"]),
        (["serve-client", "nowhere"], 1, ["nowhere", "RUN/clients/NAME"]),
        (["serve-client", "nowhere", "--answer", "maybe"], 2, ["maybe", "trained or refit"]),
        (
            ["serve-key", "lab", "--scopes", "root", "--keys", "k.yaml"],
            2,
            ["root", "route, predict, outcomes, metrics, admin"],
        ),
        (["query", "http://127.0.0.1:9", "scan.png"], 1, ["scan.png"]),
        (["query", "ftp://127.0.0.1:9", __file__], 1, ["ftp"]),
        (["query", "http://127.0.0.1:9", __file__], 1, ["is it running"]),
    ],
)
def test_errors_are_one_line_with_an_exit_code(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: list[str],
    code: int,
    parts: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    found, out, err = feddrm(capsys, monkeypatch, *words)
    assert (found, out) == (code, ""), err
    assert err.startswith("feddrm: error: ")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err
    assert not list(tmp_path.iterdir())


def test_a_folder_of_seeds_is_no_run_to_serve(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "config.yaml").touch()
    code, _, err = feddrm(capsys, monkeypatch, "serve", str(tmp_path))
    assert code == 1
    assert err == f"feddrm: error: {tmp_path} is no run but holds 1 (seed-0): name one, such as {tmp_path}/seed-0\n"


@pytest.mark.parametrize(
    ("reply", "part"),
    [
        ({"ok": True}, "answered 200, and not as a gateway does"),
        ({"fields": [1]}, "answered 200, and not as a gateway does"),
        ({"decisions": [], "inputs": ["a"], "schema": None}, "gave 0 answers to 1 samples"),
    ],
)
def test_a_query_to_a_service_that_is_no_gateway_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reply: object, part: str
) -> None:
    monkeypatch.setattr(HttpSession, "call", lambda *_: HttpReply(200, HTTPMessage(), json.dumps(reply).encode()))
    table = tmp_path / "rows.csv"
    table.write_text("a\n1\n")
    for file in (table, __file__):
        code, out, err = feddrm(capsys, monkeypatch, "query", "http://127.0.0.1:9", file)
        assert (code, out) == (1, "")
        assert err == f"feddrm: error: http://127.0.0.1:9 {part}: check the address\n"


def test_a_table_to_a_gateway_of_pictures_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reply = HttpReply(200, HTTPMessage(), b'{"schema": null, "inputs": null}')
    monkeypatch.setattr(HttpSession, "call", lambda *_: reply)
    (tmp_path / "rows.csv").write_text("a,b,c\n1,2,3\n")
    code, out, err = feddrm(capsys, monkeypatch, "query", "http://127.0.0.1:9", tmp_path / "rows.csv")
    assert (code, out) == (1, "")
    assert "rows.csv is a table, but http://127.0.0.1:9 knows no columns: give picture files" in err


def test_a_new_key_is_printed_and_works(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "keys.yaml"
    _, plain, _ = feddrm(capsys, monkeypatch, "serve-key", "lab", "--keys", path)
    _, out, _ = feddrm(capsys, monkeypatch, "serve-key", "boss", "--scopes", "admin", "--keys", path, "--json")
    keys = ApiKeys(path)
    lab, boss = keys.find(plain.strip()), keys.find(json.loads(out)["key"])
    assert lab is not None
    assert boss is not None
    assert (lab.scopes, boss.scopes) == ({"route", "predict"}, {"admin"})


@pytest.mark.parametrize("command", ["serve", "serve-client", "serve-key", "query", "outcomes"])
def test_help_has_an_example(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    code, out, _ = feddrm(capsys, monkeypatch, command, "--help")
    assert code == 0
    assert f"Example: feddrm {command} " in out


@pytest.mark.parametrize(("command", "settings"), [("serve", GatewaySettings), ("serve-client", PredictorSettings)])
def test_help_states_the_defaults_that_count(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    settings: type[GatewaySettings] | type[PredictorSettings],
) -> None:
    stated = stated_defaults(feddrm(capsys, monkeypatch, command, "--help")[1])
    assert len(stated) >= 3
    for option, words in stated.items():
        field = settings.model_fields.get({"share": "challenger_share"}.get(option, option))
        if field is not None and words not in ("this machine only", "no limit", "never", "in RUN", "it is asked"):
            assert str(field.default) in (words, f"{words}.0"), option
