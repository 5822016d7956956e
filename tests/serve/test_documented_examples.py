"""The examples of docs/serve.md, executed against a gateway."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from documentation import command_words, run_command, run_script, scripts
from serving import NAMES, Launch

pytestmark = pytest.mark.slow

START, QUERY, CURL = command_words("docs/serve.md")
URL = "http://127.0.0.1:8080"


def test_the_shell_examples(demo: str, png_file: bytes, tmp_path: Path) -> None:
    assert START == ["feddrm", "serve", "runs/first", "--demo"], "so the fixture demo starts it"
    (tmp_path / "scan.png").write_bytes(png_file)
    query, curl = ([word.replace(URL, demo) for word in words] for words in (QUERY, CURL))
    assert any(name in run_command(query, tmp_path) for name in NAMES)
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    out = subprocess.run(curl, cwd=tmp_path, capture_output=True, check=True, text=True).stdout
    assert json.loads(out)["answers"][0]["client"] in NAMES


def test_the_python_example_of_the_documentation(demo: str, png_file: bytes, tmp_path: Path) -> None:
    (tmp_path / "scan.png").write_bytes(png_file)
    script, _ = scripts("docs/serve.md")
    client, label = run_script(script.replace(URL, demo), tmp_path).split()
    assert client in NAMES
    assert label.isdigit()


def test_the_grpc_example_of_the_documentation(run: Path, launch: Launch, tmp_path: Path) -> None:
    _, script = scripts("docs/serve.md")
    process = launch("serve", run, "--port", 0, "--grpc-port", 0, "--audit", tmp_path / "a.sqlite")
    process.wait_ready()
    script = script.replace("127.0.0.1:8081", process.grpc_address)
    client, probability = run_script(script, tmp_path).split()
    assert client in NAMES
    assert 0 < float(probability) <= 1
