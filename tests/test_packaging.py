"""Image, compose files, units and manifests: they are valid, lock down what they should, and their commands exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from documentation import command_lines, parse_command

ROOT = Path(__file__).parents[1]
PACKAGING = ROOT / "packaging"
COMPOSE = sorted(PACKAGING.glob("compose/*/compose.yaml"))
UNITS = sorted(PACKAGING.glob("systemd/*.service"))
MANIFESTS = PACKAGING / "kubernetes"
VALUES = {"RUN": "/srv/run", "KEYS": "/srv/keys", "PREDICTOR_KEY": "k", "FEDERATION": "/srv/federation"}


def program(name: str) -> str:
    """The path of a program; without it the test is skipped."""
    beside = Path(sys.executable).with_name(name)
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        pytest.skip(f"install {name} to run this")
    return path


def succeed(*arguments: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, env={**os.environ, **(environment or {})})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def services() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{path.parent.name}/{name}", service)
        for path in COMPOSE
        for name, service in yaml.safe_load(path.read_text())["services"].items()
    ]


def gateway_pod() -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load((MANIFESTS / "deployment.yaml").read_text())["spec"]["template"]["spec"]
    return spec


def commands() -> list[tuple[str, list[str]]]:
    """Every feddrm command of these files, and of the page about them, without the program's name."""
    units = [(unit.name, re.search(r"ExecStart=\S+/feddrm (.*)", unit.read_text())) for unit in UNITS]
    page = map(shlex.split, command_lines("docs/containers.md"))
    asked = [words for words in page if "feddrm" in words and words[0] != "kubectl" and "--tag" not in words]
    return [
        *((name, list(service["command"])) for name, service in services()),
        *((name, shlex.split(found[1])) for name, found in units if found),
        ("kubernetes", list(gateway_pod()["containers"][0]["args"])),
        *(("page", words[words.index("feddrm") + 1 :]) for words in asked),
    ]


@pytest.mark.parametrize(("place", "words"), commands())
def test_every_command_and_option_exists(place: str, words: list[str]) -> None:
    assert words, place
    parse_command(words)


def test_a_misspelt_option_or_command_is_found() -> None:
    with pytest.raises(click.NoSuchOption):
        parse_command(["serve", "/run", "--client", "clients.yaml"])
    with pytest.raises(AssertionError, match="there is no command 'sit'"):
        parse_command(["deploy", "sit", "/federation"])


def test_all_units_and_services_are_looked_at() -> None:
    assert [unit.name for unit in UNITS] == ["feddrm-gateway.service", "feddrm-predictor@.service"]
    assert len(services()) == 8
    assert len(commands()) >= len(services()) + len(UNITS) + 1 + 5


@pytest.mark.parametrize(("name", "service"), services())
def test_containers_have_no_rights_they_do_not_need(name: str, service: dict[str, Any]) -> None:
    assert service["read_only"] is True, name
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service["user"].startswith("0")


def test_a_container_of_a_client_sees_no_other_client() -> None:
    for name, service in services():
        who = name.rpartition("/")[2]
        seen = {found for volume in service["volumes"] for found in re.findall(r"/(?:clients|sites)/([\w-]+)", volume)}
        assert seen == (set() if who in ("gateway", "server") else {who}), name


def test_pods_have_no_rights_they_do_not_need() -> None:
    pod = gateway_pod()
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    allowed = pod["containers"][0]["securityContext"]
    assert allowed["readOnlyRootFilesystem"] is True
    assert allowed["allowPrivilegeEscalation"] is False
    assert allowed["capabilities"] == {"drop": ["ALL"]}
    mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_the_image_is_not_run_as_root_and_gets_what_it_copies() -> None:
    lines = (PACKAGING / "Dockerfile").read_text().splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users == ["10001:10001"]
    copied = [word for line in lines if re.match(r"COPY (?!--from)", line) for word in line.split()[1:-1]]
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    assert set(copied) == {"constraints.txt", "pyproject.toml", "README.md", "LICENSE", "src"}
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in sent


def test_the_workflow_runs_the_same_script_on_every_supported_python() -> None:
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["ci"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [found[1] for line in project["classifiers"] if (found := re.search(r"Python :: (3\.\d+)$", line))]
    assert job["strategy"]["matrix"]["python"] == named
    assert project["requires-python"] == f">={named[0]}"


class Health(BaseHTTPRequestHandler):
    """Answers the health check with the status that a test sets."""

    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/v2/health/ready" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.mark.slow
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_the_health_check_of_the_image_fails_unless_the_gateway_is_ready(tls: bool, tmp_path: Path) -> None:
    lines = (PACKAGING / "Dockerfile").read_text().replace("\\\n", "")
    found = re.search(r'HEALTHCHECK .*CMD \["python", "-c", +"(.*)"\]', lines)
    assert found is not None
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        environment = {**os.environ, "FEDDRM_SERVE_PORT": str(server.server_port), "http_proxy": "http://127.0.0.1:9"}
        environment["https_proxy"] = environment["http_proxy"]  # the check goes by no proxy
        if tls:
            cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
            words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=gateway.example"
            succeed(program("openssl"), *words.split(), "-keyout", key, "-out", cert)
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(cert, key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            environment["FEDDRM_SERVE_TLS_CERT"] = cert
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for status, healthy in ((200, True), (503, False)):
            Health.status = status
            done = subprocess.run([sys.executable, "-c", found[1]], env=environment, capture_output=True)
            assert (done.returncode == 0) is healthy, done.stderr
        server.shutdown()


def with_tls() -> dict[str, dict[str, Any]]:
    """Deployment and Service with the patches of the component tls, by their kind."""
    documents = [yaml.safe_load((MANIFESTS / name).read_text()) for name in ("deployment.yaml", "service.yaml")]
    patched = {document["kind"]: document for document in documents}
    for patch in yaml.safe_load((MANIFESTS / "tls" / "kustomization.yaml").read_text())["patches"]:
        assert patched[patch["target"]["kind"]]["metadata"]["name"] == patch["target"]["name"]
        for change in yaml.safe_load(patch["patch"]):
            *path, last = change["path"].strip("/").split("/")
            place: Any = patched[patch["target"]["kind"]]
            for part in path:
                place = place[int(part)] if isinstance(place, list) else place[part]
            if last == "-":
                place.append(change["value"])
            else:
                assert (last in place) == (change["op"] == "replace"), change
                place[last] = change["value"]
    return patched


def test_with_tls_the_probes_speak_https_and_the_settings_name_mounted_files() -> None:
    patched = with_tls()
    pod = patched["Deployment"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
    values = {one["name"]: one["value"] for one in container["env"]}
    assert values["FEDDRM_SERVE_TLS_CERT"] == f"{mounts['tls']}/tls.crt"  # as kubectl create secret tls names them
    assert values["FEDDRM_SERVE_TLS_KEY"] == f"{mounts['tls']}/tls.key"
    assert patched["Service"]["spec"]["ports"] == [{"name": "https", "port": 443, "targetPort": "http"}]


@pytest.mark.slow
def test_the_image_file_is_clean() -> None:
    succeed(program("hadolint"), str(PACKAGING / "Dockerfile"))


@pytest.mark.slow
@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.parent.name)
def test_compose_files_are_valid(path: Path) -> None:
    succeed(program("docker-compose"), "--file", str(path), "config", "--quiet", environment=VALUES)


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_are_valid(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name.replace("@.", "@oslo.")
    copy.write_text(re.sub(r"/opt/feddrm/\S*/feddrm ", "/bin/true ", unit.read_text()))  # it is installed elsewhere
    succeed(program("systemd-analyze"), "verify", "--man=no", str(copy))


@pytest.mark.slow
def test_the_manifest_with_tls_is_valid(tmp_path: Path) -> None:
    spec = with_tls()["Deployment"]["spec"]
    labels = {"app": "feddrm"}  # kustomize adds them
    spec["selector"], spec["template"]["metadata"] = {"matchLabels": labels}, {"labels": labels}
    document = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "gateway"}, "spec": spec}
    (tmp_path / "tls.yaml").write_text(yaml.safe_dump(document))
    succeed(program("kubernetes-validate"), "--strict", str(tmp_path / "tls.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_manifests_are_valid(tls: bool, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(MANIFESTS, tmp_path / "kubernetes"))
    if tls:
        with (folder / "kustomization.yaml").open("a") as file:
            file.write("components: [tls]\n")
    (tmp_path / "all.yaml").write_text(succeed(program("kubectl"), "kustomize", str(folder)))
    kinds = [document["kind"] for document in yaml.safe_load_all((tmp_path / "all.yaml").read_text())]
    claims = ["PersistentVolumeClaim"] * 2
    assert sorted(kinds) == sorted(["Namespace", "Deployment", "Service", "NetworkPolicy", *claims])
    succeed(program("kubernetes-validate"), "--strict", str(tmp_path / "all.yaml"))
