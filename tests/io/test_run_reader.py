"""The figures of a run folder."""

from __future__ import annotations

from pathlib import Path

from feddrm.io.run_reader import RunReader
from refusal import refused


def test_a_folder_without_figures_has_none(tmp_path: Path) -> None:
    run = RunReader(tmp_path)
    assert (run.metrics(), run.summary(), run.read_json(run.evaluation_file)) == ([], None, None)


def test_figures_are_read_and_a_last_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    run = RunReader(tmp_path)
    run.metrics_file.write_text('{"round": 1}\n{"round": 2}\n{"rou')
    run.summary_file.write_text('{"rounds": 2}')
    assert [entry["round"] for entry in run.metrics()] == [1, 2]
    assert run.summary() == {"rounds": 2}


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    run = RunReader(tmp_path)
    run.summary_file.write_text("{")
    with refused(str(run.summary_file), "run the training again"):
        run.summary()


def test_a_folder_of_runs_names_them(tmp_path: Path) -> None:
    """As of several seeds, or of several methods with several seeds each."""
    for seed in range(4):
        (tmp_path / "runs" / "feddrm" / f"seed-{seed}").mkdir(parents=True)
        (tmp_path / "runs" / "feddrm" / f"seed-{seed}" / "config.yaml").touch()
    folder = tmp_path / "runs" / "feddrm"
    with refused(f"{folder} is no run but holds 4 (seed-0, seed-1, seed-2, ...): name one, such as {folder}/seed-0"):
        RunReader(folder).config()
    with refused("runs is no run but holds 4 (feddrm/seed-0, feddrm/seed-1, feddrm/seed-2, ...)"):
        RunReader(tmp_path / "runs").config()
    with refused(f"{tmp_path / 'none'} is no run (it has no config.yaml)"):
        RunReader(tmp_path / "none").config()
