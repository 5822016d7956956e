"""What is read of federation.yaml without its checks."""

from __future__ import annotations

from pathlib import Path

from feddrm.deploy.server.federation_file import CONFIG, read_federation, read_members
from refusal import refused


def test_the_run_and_its_sites_are_read_whatever_else_the_file_says(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text("clients: [oslo, 7]\ntraining: {method: no-such-method}\n")
    assert read_members(tmp_path) == ("first", ("oslo", "7"))
    assert read_federation(tmp_path)["training"] == {"method": "no-such-method"}
    (tmp_path / CONFIG).write_text("clients: [oslo, lima]\nrun: second\n")
    assert read_members(tmp_path).run == "second"


def test_a_file_without_a_list_of_sites_is_refused(tmp_path: Path) -> None:
    with refused(str(tmp_path / CONFIG)):
        read_members(tmp_path)
    (tmp_path / CONFIG).write_text("clients: oslo\n")
    with refused(f"{tmp_path / CONFIG}: 'clients' must list the names of the sites"):
        read_members(tmp_path)
