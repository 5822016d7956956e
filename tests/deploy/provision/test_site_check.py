"""What ``feddrm deploy check`` finds at a site, without a server."""

from __future__ import annotations

import datetime
import json
import re
import select
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from dates import days_from_now
from feddrm.checks import findings
from feddrm.deploy.provision import certificates
from feddrm.deploy.provision.certificates import write_certificates, write_key_pair
from feddrm.deploy.provision.folder_check import Finding
from feddrm.deploy.provision.project import make_project
from feddrm.deploy.provision.site_check import check_site
from feddrm.deploy.server.federation_settings import FederationSettings

Found = Callable[[], dict[str, Finding]]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    make_project(tmp_path / "f", FederationSettings(clients=("oslo", "lima"), port=9))
    folder = tmp_path / "f" / "sites" / "oslo"
    rows = [f"{(i % 2 and 'sick') or 'well'},{i * 0.5},{i}" for i in range(40)]
    (folder / "visits.csv").write_text("\n".join(["outcome,age,dose", *rows]) + "\n")
    change(folder, data={"csv": "visits.csv", "label": "outcome"})
    return folder


def change(folder: Path, **settings: object) -> None:
    path = folder / "site.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **settings}))


def found(folder: Path) -> dict[str, Finding]:
    return {finding.what: finding for finding in check_site(folder)}


def test_a_sound_site(site: Path) -> None:
    findings = found(site)
    assert {what: finding.level for what, finding in findings.items()} == {
        "samples": "ok",
        "classes": "ok",
        "columns": "ok",
        "folder": "ok",
        "disk": findings["disk"].level,
        "versions": "ok",
        "key": "ok",
        "server's key": "ok",
        "certificate": "ok",
        "server": "warning",
    }
    assert findings["samples"].text.startswith("28 training and 12 test samples of 2 float32")
    assert findings["classes"].text == "2: sick (20), well (20)"
    assert findings["columns"].text == "2: age (0 to 19.5), dose (0 to 39)"
    assert findings["key"].text.endswith(": the server must have the same one as keys/oslo.pub")
    assert "nothing listens there" in findings["server"].text
    assert not (site / "status.json").exists(), "it changes nothing"


def test_what_a_site_with_an_automatic_schema_will_tell_is_shown(site: Path) -> None:
    rows = [f"{'ab'[i % 2]},{i},{'fm'[i // 2 % 2]}" for i in range(40)]
    (site / "visits.csv").write_text("\n".join(["outcome,age,sex", *rows, "a,,f"]) + "\n")
    change(site, data={"csv": "visits.csv", "label": "outcome", "schema": "auto"})
    text = found(site)["columns"].text
    assert re.fullmatch(r"2: age \(2\d numbers, mean [\d.]+, gaps\), sex \(f, m\)", text)
    change(site, data={"csv": "visits.csv", "label": "outcome", "schema": "auto", "categories": ["age"]})
    assert "column 'age' has 40 different texts in 40 rows that have one" in found(site)["data"].text
    (site / "visits.csv").write_text("\n".join(["outcome,age,sex", *rows, *rows]) + "\n")
    assert re.fullmatch(r"2: age \(0, 1, 10, .*, ...; 40 in all\), sex \(f, m\)", found(site)["columns"].text)


def test_variants_of_spelling_and_few_samples_are_warned_of(site: Path) -> None:
    rows = [f"{label},{i},{i}" for i, label in enumerate(["Sick", "sick", "well"] * 4)]
    (site / "visits.csv").write_text("\n".join(["outcome,Dose,dose", *rows]) + "\n")
    findings = check_site(site)
    texts = [finding.text for finding in findings if finding.what == "spelling"]
    assert "'Sick' and 'sick'" in texts[0]
    assert "'Dose' and 'dose'" in texts[1]
    assert found(site)["samples"].level == "warning"


def test_samples_are_warned_of_as_in_one_process(site: Path) -> None:
    rows = [f"{'ab'[i % 2]},{1000 + i},{i * 0.37 % 5:.2f}" for i in range(90)]
    (site / "visits.csv").write_text("\n".join(["outcome,record,dose", *rows]) + "\n")
    warned = [f.text for f in check_site(site) if (f.what, f.level) == ("samples", "warning")]
    assert len(warned) == 1
    assert warned[0].startswith("'record': another whole number in every row of a client.")
    assert "(drop: [record])" in warned[0]


def test_data_that_cannot_be_read_are_a_problem_and_the_rest_is_still_checked(site: Path) -> None:
    (site / "visits.csv").unlink()
    findings = found(site)
    assert findings["data"].level == "problem"
    assert "visits.csv" in findings["data"].text
    assert findings["key"].level == "ok"


@pytest.mark.parametrize(
    "name", ["node.key", "secret", "runs/first/private-2.safetensors", "clients/oslo/head.safetensors"]
)
def test_private_files_that_others_can_read_are_a_problem(name: str, site: Path) -> None:
    (site / name).parent.mkdir(parents=True, exist_ok=True)
    (site / name).touch()
    (site / name).chmod(0o640)
    finding = found(site)["folder"]
    assert finding.level == "problem"
    assert name in finding.text


def test_a_folder_that_cannot_be_written_is_a_problem(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(dir: Path, buffering: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(findings, "NamedTemporaryFile", refuse)
    assert "Permission denied" in found(site)["folder"].text


def test_a_missing_or_strange_key_is_a_problem(site: Path, tmp_path: Path) -> None:
    write_key_pair(tmp_path / "other", "node")
    shutil.copy(tmp_path / "other" / "node.pub", site / "node.pub")
    assert "is not the public half" in found(site)["key"].text
    (site / "node.key").unlink()
    assert "feddrm deploy keygen" in found(site)["key"].text


@pytest.mark.parametrize(("days", "what", "level"), [(20, "certificate", "warning"), (-0.5, "certificate", "problem")])
def test_the_dates_of_the_certificate_are_checked(
    days: float, what: str, level: str, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", days)
    (tmp_path / "other").mkdir()
    (site / "ca.crt").write_bytes(write_certificates(tmp_path / "a", tmp_path / "other", ["localhost"]))
    assert found(site)[what].level == level


def test_a_clock_before_the_certificate_is_a_problem(site: Path) -> None:
    with days_from_now(-9000):
        assert found(site)["clock"].level == "problem"


@contextmanager
def answering(folder: Path, ahead: float) -> Iterator[int]:
    """The port of a server with the federation's certificate, whose clock is ahead of ours by some seconds."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:
            when = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=ahead)
            return when.strftime("%a, %d %b %Y %H:%M:%S GMT")

        def log_message(self, format: str, *args: object) -> None: ...

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("ahead", "level"), [(0.0, "ok"), (-60.0, "problem"), (60.0, "ok"), (600.0, "problem")])
def test_the_clock_is_compared_with_a_server_that_can_be_reached(ahead: float, level: str, site: Path) -> None:
    """Flower refuses a site whose clock is more than 5 s ahead, or more than 300 s behind."""
    with answering(site.parent.parent / "server", ahead) as port:
        change(site, server=f"127.0.0.1:{port}")
        findings = found(site)
    assert findings["server"].level == "ok"
    assert "certificate is valid to" in findings["server"].text
    assert findings["clock"].level == level


@contextmanager
def proxy(allow: bool) -> Iterator[tuple[int, list[str]]]:
    """The port of a proxy that lets callers through, or not, and what they asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            asked.append(self.path)
            self.send_response(200 if allow else 403)
            self.end_headers()
            if not allow:
                return
            host, _, port = self.path.partition(":")
            with socket.create_connection((host, int(port))) as far:
                ends = [self.connection, far]
                while True:
                    for end in select.select(ends, [], [])[0]:
                        content = end.recv(65536)
                        if not content:
                            return
                        ends[1 - ends.index(end)].sendall(content)

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("allow", [True, False])
def test_the_server_is_asked_through_the_proxy_of_the_environment(
    allow: bool, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Flower's client asks it: through TLS from end to end."""
    with answering(site.parent.parent / "server", 0.0) as port, proxy(allow) as (way, asked):
        change(site, server=f"localhost:{port}")
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{way}")
        findings = found(site)
        assert asked == [f"localhost:{port}"]
    assert findings["server"].level == ("ok" if allow else "warning")
    assert f"proxy http://127.0.0.1:{way}" in findings["server"].text
    assert (
        "certificate is valid to" in findings["server"].text or "ask for it, or set NO_PROXY" in findings["server"].text
    )
    assert ("clock" in findings) == allow
    assert findings["proxy"].level == "problem", "the site's own processes would be asked through it, too"
    assert "add 127.0.0.1 to NO_PROXY" in findings["proxy"].text
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    findings = found(site)
    assert "proxy" not in findings
    assert "proxy" not in findings["server"].text


def test_floors_are_checked_before_a_run(site: Path) -> None:
    assert "floors" not in found(site)
    change(site, floors={"per_class": 5, "per_sum": 5})
    assert (found(site)["floors"].level, found(site)["floors"].text[:22]) == ("ok", "at least 5 samples of ")
    change(site, floors={"per_class": 5, "per_sum": 10})
    assert "A fold of a router's fit may have 5" in found(site)["floors"].text
    change(site, floors={"per_sum": 29})
    assert "the floor per_sum=29" in found(site)["data"].text
    assert found(site)["data"].level == "problem"


@pytest.mark.parametrize("schema", [{}, {"schema": "auto"}])
def test_floors_count_subjects(schema: dict[str, str], site: Path) -> None:
    """Forty visits of ten patients, seven of whom are trained on."""
    rows = [f"{(i % 3 and 'sick') or 'well'},{i * 0.5},{i},p{i // 4}" for i in range(40)]
    (site / "visits.csv").write_text("\n".join(["outcome,age,dose,patient", *rows]) + "\n")
    change(site, data={"csv": "visits.csv", "label": "outcome", "subject": "patient", **schema}, floors={"per_sum": 3})
    findings = found(site)
    assert (
        "28 training and 12 test samples of 2 float32, of 7 and 3 subjects: sums over so few"
        in findings["samples"].text
    )
    assert findings["samples"].level == "warning"
    assert "3 of a sum (a subject counts once)" in findings["floors"].text
    assert "A fold of a router's fit may have 1" in findings["floors"].text
    change(site, floors={"per_sum": 4})
    assert (
        "the test samples: fewer samples (a subject counts once) than the floor per_sum=4" in found(site)["data"].text
    )


def test_data_of_another_form_than_the_last_run_are_warned_of(site: Path) -> None:
    facts = {"sample_shape": [2], "classes": ["sick", "well", "odd"]}
    (site / "data.json").write_text(json.dumps(facts))
    assert found(site)["form"].level == "ok"
    (site / "data.json").write_text(json.dumps({**facts, "classes": ["well", "odd"]}))
    assert "class 'sick' is not one of the last run" in found(site)["form"].text
    (site / "data.json").write_text(json.dumps({**facts, "sample_shape": [3]}))
    assert "shape [2], the last run agreed on [3]" in found(site)["form"].text
    assert found(site)["form"].level == "warning"
