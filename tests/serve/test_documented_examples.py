"""The examples of README.md and docs/serve.md, executed against a gateway."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from documentation import blocks
from serving import NAMES, Launch

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SHELL = blocks("README.md", "shell")[0][1].splitlines()


@pytest.mark.parametrize("example", SHELL)
def test_the_shell_examples_of_the_readme(demo: str, png_file: bytes, tmp_path: Path, example: str) -> None:
    if example.startswith("curl") and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (tmp_path / "scan.png").write_bytes(png_file)
    command = example.replace("http://127.0.0.1:8080", demo).replace("feddrm ", f"{sys.executable} -m feddrm ")
    assert demo in command
    out = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, check=True, text=True).stdout
    assert any(name in out for name in NAMES)
    if example.startswith("curl"):
        assert json.loads(out)["answers"][0]["client"] in NAMES


def test_the_python_example_of_the_documentation(demo: str, png_file: bytes, tmp_path: Path) -> None:
    (tmp_path / "scan.png").write_bytes(png_file)
    (_, script), _ = blocks("docs/serve.md", "python")
    script = script.replace("http://127.0.0.1:8080", demo)
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, check=True, text=True)
    client, label = done.stdout.split()
    assert client in NAMES
    assert label.isdigit()


def test_the_grpc_example_of_the_documentation(run: Path, launch: Launch, tmp_path: Path) -> None:
    _, (_, script) = blocks("docs/serve.md", "python")
    process = launch("serve", run, "--port", 0, "--grpc-port", 0, "--audit", tmp_path / "a.sqlite")
    process.wait_ready()
    script = script.replace("127.0.0.1:8081", process.grpc_address)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    client, probability = done.stdout.split()
    assert client in NAMES
    assert 0 < float(probability) <= 1
