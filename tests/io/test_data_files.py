"""Finding and downloading files, against a real server on loopback."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from feddrm.errors import FeddrmError
from feddrm.io import data_files

BODY = bytes(range(256)) * 4096  # 1 MiB


class Server(ThreadingHTTPServer):
    """Sends BODY; ``cut`` ends the next answer early; remembers the ranges it was asked for."""

    cut: int | None = None
    ranges: list[str | None]
    resumable = True


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.resumable else 0
        if start >= len(BODY):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(BODY) - start))
        self.end_headers()
        end, self.server.cut = self.server.cut, None
        self.wfile.write(BODY[start:end])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        running.ranges = []
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def remote(server: Server, md5: str | None = None) -> data_files.Remote:
    return data_files.Remote(f"http://127.0.0.1:{server.server_port}/pack.bin", md5 or hashlib.md5(BODY).hexdigest())


def test_a_file_arrives_whole_and_is_not_fetched_twice(server: Server, tmp_path: Path) -> None:
    path = data_files.fetch(remote(server), tmp_path / "new" / "folder")
    assert path.read_bytes() == BODY
    assert [p.name for p in path.parent.iterdir()] == ["pack.bin"]
    assert data_files.fetch(remote(server), path.parent) == path
    assert server.ranges == [None]


def test_an_interrupted_download_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.cut = 300_000
    with pytest.raises(FeddrmError, match=r"could not download http.*run again to resume, or put pack\.bin into"):
        data_files.fetch(remote(server), tmp_path)
    assert not (tmp_path / "pack.bin").exists()
    have = (tmp_path / "pack.bin.part").stat().st_size
    assert 0 < have <= 300_000
    assert data_files.fetch(remote(server), tmp_path).read_bytes() == BODY
    assert server.ranges == [None, f"bytes={have}-"]


def test_a_server_that_cannot_resume_sends_it_all_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "pack.bin.part").write_bytes(b"x" * 1000)
    server.resumable = False
    assert data_files.fetch(remote(server), tmp_path).read_bytes() == BODY


def test_a_complete_part_needs_no_more_bytes(server: Server, tmp_path: Path) -> None:
    (tmp_path / "pack.bin.part").write_bytes(BODY)
    assert data_files.fetch(remote(server), tmp_path).read_bytes() == BODY


def test_a_wrong_checksum_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    with pytest.raises(FeddrmError, match=r"arrived with md5 [0-9a-f]{32}, expected 0000: it was removed; run again"):
        data_files.fetch(remote(server, "0000"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_server_and_no_folder(tmp_path: Path) -> None:
    nowhere = data_files.Remote("http://127.0.0.1:9/pack.bin", "0")
    with pytest.raises(FeddrmError, match=r"could not download http://127\.0\.0\.1:9/pack\.bin"):
        data_files.fetch(nowhere, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FeddrmError, match=r"could not write .*: free it or choose another --data-dir"):
        data_files.fetch(nowhere, tmp_path / "file" / "below")


def test_folders_are_searched_in_order(no_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, env = tmp_path / "given", tmp_path / "env"
    for folder in (given, env, no_data):
        folder.mkdir()
        (folder / "a.bin").write_text(folder.name)
    monkeypatch.setenv("FEDDRM_DATA", str(env))

    def found(data_dir: Path | None) -> str:
        paths = data_files.find([("a.bin",)], data_dir)
        assert paths is not None
        return paths[0].read_text()

    assert found(given) == "given"
    assert found(None) == "env"
    (env / "a.bin").unlink()
    assert found(None) == "cache"
    assert data_files.find([("a.bin", "b.bin")], given) is None, "a set is found whole or not at all"


def test_missing_files_say_what_to_do(no_data: Path, tmp_path: Path) -> None:
    source = data_files.Remote("https://example.org/a.tar.gz", "0")
    with pytest.raises(FeddrmError) as error:
        data_files.obtain("thing", [("a.npz", "b.npz"), ("a.tar.gz",)], [source], data_dir=tmp_path, download=False)
    assert str(error.value) == (
        f"no files of 'thing' in {tmp_path}, {no_data}: put a.npz + b.npz or a.tar.gz into one of them "
        "(or point --data-dir or FEDDRM_DATA at it), or allow the download with --download (https://example.org/a.tar.gz)"
    )
    with pytest.raises(FeddrmError, match=r"data folder .*none' does not exist"):
        data_files.find([("a",)], tmp_path / "none")


def test_obtain_downloads_into_the_cache_when_allowed(server: Server, no_data: Path) -> None:
    got = data_files.obtain("thing", [("pack.bin",)], [remote(server)], data_dir=None, download=True)
    assert got == [no_data / "pack.bin"]
    assert data_files.obtain("thing", [("pack.bin",)], [], data_dir=None, download=False) == got


def test_a_server_that_does_not_speak_http(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            caller, _ = listening.accept()
            with caller:
                caller.recv(1000)
                caller.sendall(b"SSH-2.0-OpenSSH\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/pack.bin"
        with pytest.raises(FeddrmError, match=r"could not download http"):
            data_files.fetch(data_files.Remote(url, "0"), tmp_path)
        thread.join()
