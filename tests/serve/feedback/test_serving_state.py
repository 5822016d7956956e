from __future__ import annotations

from pathlib import Path

import pytest

from feddrm.serve.feedback.serving_state import ServingState, artifact_folder
from refusal import refused


def router_in(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    return folder


def test_promotions_and_their_undoing(tmp_path: Path) -> None:
    run, x, y = tmp_path / "run", router_in(tmp_path / "x"), router_in(tmp_path / "y" / "router")
    run.mkdir()
    state = ServingState.read(run)
    assert (state, state.folder(run)) == (ServingState(), run / "router")
    state.promoted(x).promoted(artifact_folder(tmp_path / "y")).write(run)
    state = ServingState.read(run)
    assert (state.folder(run), state.former) == (y, str(x))
    assert state.restored("v") == ServingState(str(x), None, "v")
    assert state.restored("v").restored("w") == ServingState(None, None, "w")
    assert artifact_folder(x) == x
    (run / "config.yaml").touch()
    with refused(f"{tmp_path} is no run but holds 1 (run): name one"):
        artifact_folder(tmp_path)


@pytest.mark.parametrize("text", ['{"artifact": 3}', '{"other": "x"}', "[]", "{"])
def test_a_broken_state_is_one_clear_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "serving.json").write_text(text)
    with refused("serving.json"):
        ServingState.read(tmp_path)


def test_a_promoted_artifact_that_is_gone_is_one_clear_line(tmp_path: Path) -> None:
    with refused("serving.json", "gone", "delete serving.json"):
        ServingState(str(tmp_path / "gone")).folder(tmp_path)
