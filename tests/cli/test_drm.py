"""``feddrm drm`` as a person calls it."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from feddrm.cli import main
from feddrm.drm import DensityRatioModel, inference

ROOT = Path(__file__).parents[2]


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run the command line in this process: exit code, standard output, standard error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["feddrm", "drm", *words])
        with pytest.raises(SystemExit) as stop:
            main()
    out, err = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, out, err


@pytest.fixture
def files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    code, out, _ = call(capsys, "example", str(tmp_path))
    assert code == 0
    paths = [str(tmp_path / f"{name}.csv") for name in "abc"]
    assert out.strip() == f"wrote {', '.join(paths)}"
    return paths


def test_fit_prints_what_the_library_says(files: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = call(capsys, "fit", *files, "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    fit = DensityRatioModel().fit({Path(f).stem: np.loadtxt(f, skiprows=1) for f in files})
    tilts, test = inference.tilts(fit), inference.homogeneity(fit)
    assert facts["terms"] == ["1", "x", "x^2"]
    assert facts["reference"] == "a"
    assert facts["homogeneity"] == dataclasses.asdict(test)
    assert facts["goodness_of_fit"]["p_value"] > 0.05
    for i, population in enumerate(facts["populations"]):
        assert (population["name"], population["n"]) == ("abc"[i], (200, 100, 300)[i])
        assert population["tilt"] == tilts.value[i].tolist()
        assert population["standard_error"] == tilts.error[i].tolist()
        assert population["quantiles"][1]["value"] == inference.quantile(fit, 0.5)[i, 0]
        assert population["quantiles"][1]["low"] <= population["quantiles"][1]["value"]
    picture = tmp_path / "density.png"
    code, out, _ = call(capsys, "fit", *files, "--out", str(picture))
    assert code == 0
    row = ["c", "300", "x", f"{tilts.value[2, 1]:.4g}", f"{tilts.error[2, 1]:.3g}"]
    assert row in [line.split() for line in out.splitlines()]
    assert f"chi-square {test.statistic:.2f} on 4 degrees of freedom" in out
    assert "does the basis normal fit? p = " in out
    assert out.strip().endswith(f"wrote {picture}")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_several_columns_and_a_ridge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        rows = rng.gamma(2 + (name == "south"), 1, (40, 2))
        (tmp_path / f"{name}.csv").write_text("age,dose\n" + "".join(f"{a},{b}\n" for a, b in rows.tolist()))
    paths = [str(tmp_path / f"{name}.csv") for name in ("north", "south")]
    code, out, _ = call(capsys, "fit", *paths, "--basis", "gamma", "--ridge", "2", "--out", str(tmp_path / "d.svg"))
    assert code == 0
    assert "log dose" in out
    assert "not tested: the fit has a ridge" in out
    assert "Quantiles" not in out


def test_a_long_table_a_page_and_every_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(1)
    rows = [f"{site},{value:.6f},note\n" for site, m in (("oslo", 0.0), ("lima", 0.6)) for value in
            np.where(rng.random(80) < 0.2, 0, np.exp(rng.normal(m, 0.7, 80)))]  # fmt: skip
    (tmp_path / "long.csv").write_text("site,dose,note\n" + "".join(rows))
    page = tmp_path / "page.html"
    words = [str(tmp_path / "long.csv"), "--group", "site", "--column", "dose", "--zeros", "--basis", "auto"]
    options = ["--quantiles", "0.5,0.9", "--confidence", "0.9", "--correction", "none", "--seed", "3"]
    code, out, err = call(capsys, "fit", *words, *options, "--json", "--out", str(page))
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert [p["name"] for p in facts["populations"]] == ["oslo", "lima"]
    assert [q["level"] for q in facts["populations"][0]["quantiles"]] == [0.5, 0.9]
    assert facts["confidence"] == 0.9
    assert facts["populations"][0]["zeros"]["count"] > 5
    assert facts["homogeneity"]["correction"] == "none"
    assert facts["basis"] in ("gamma", "lognormal")
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "Comparison of oslo, lima" in text
    code, out, _ = call(capsys, "fit", *words, *options)
    assert code == 0
    assert "share (90 % interval)" in out
    assert "Choice of the basis" in out


def test_a_basis_that_cannot_be_judged_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path, sample in zip(paths, ("0 1 2 3 3.2", "3 4 5 6 7"), strict=True):
        path.write_text("x\n" + sample.replace(" ", "\n") + "\n")
    code, out, err = call(capsys, "fit", *map(str, paths), "--basis", "identity", "--quantiles", "0.5")
    assert code == 0
    assert err.startswith("feddrm: warning: goodness of fit of basis identity is not known: in ")
    assert out.strip().endswith("does the basis identity fit? not known: too few replicates have a fit")


def test_terms_and_bootstrap(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "fit", *files, "--absent", "x^2", "--bootstrap", "50", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["tests"][1]["hypothesis"] == "no x^2"
    assert facts["tests"][1]["p_value"] < 0.001  # b has a larger variance
    low, high = facts["populations"][1]["mean_interval"]["x"]
    assert low < facts["populations"][1]["mean"]["x"] < high


def test_more_replicates_give_smaller_p_values(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for replicates in (20, 60):
        words = ("--correction", "bootstrap", "--replicates", str(replicates), "--json")
        code, out, _ = call(capsys, "fit", *files, *words)
        assert code == 0
        assert json.loads(out)["homogeneity"]["p_value"] == pytest.approx(1 / (1 + replicates))


def test_a_bad_basis_is_warned_of_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(2)
    for name, m in (("a", 0.0), ("b", 0.5), ("c", 1.0)):
        (tmp_path / f"{name}.csv").write_text("".join(f"{v:.6f}\n" for v in np.exp(rng.normal(m, 1, 200))))
    code, _, err = call(capsys, "fit", *(str(tmp_path / f"{name}.csv") for name in "abc"))
    assert code == 0
    assert err.startswith("feddrm: warning: basis normal")
    assert "choose lognormal, or 'auto'" in err or "choose gamma, or 'auto'" in err
    assert err.count("feddrm: warning") == err.count("\n")


@pytest.mark.slow
def test_drift_and_tradeoff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "drift", "--rounds", "3", "--json", "--out", str(tmp_path / "drift.png"))
    facts = json.loads(out)
    assert code == 0
    assert len(facts) == 6
    assert all(f["relative_client"]["mean"] > f["relative_class"]["mean"] for f in facts)
    code, out, _ = call(capsys, "tradeoff", "--rounds", "3", "--json", "--out", str(tmp_path / "tradeoff.png"))
    facts = json.loads(out)
    assert code == 0
    assert facts["lambda"] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert facts["statistical_error"][0]["ridge"] == 0
    assert len(set(facts["statistical_error"][0]["client"])) == 1
    for name in ("drift", "tradeoff"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["fit", "nowhere.csv", "else.csv"], 1, "nowhere.csv does not exist"),
        (["fit", "A"], 1, "two populations"),
        (["fit", "A", "A"], 1, "another file called 'a'"),
        (["fit", "A", "B", "--basis", "norml"], 2, "did you mean 'normal'?"),
        (["fit", "A", "B", "--basis", "gamma"], 1, "population 'a': the gamma basis takes logarithms"),
        (["fit", "A", "B", "--ridge", "-1"], 2, "ridge=-1.0"),
        (["fit", "A", "B", "--quantiles", "0.5,x"], 2, "--quantiles '0.5,x'"),
        (["fit", "A", "B", "--quantiles", "0.5,1"], 2, "quantile levels [0.5, 1.0]"),
        (["fit", "A", "B", "--confidence", "95"], 2, "confidence 95.0"),
        (["fit", "A", "B", "--correction", "bartlet"], 2, "did you mean 'bartlett'?"),
        (["fit", "A", "B", "--replicates", "5"], 2, "5 bootstrap samples are too few"),
        (["fit", "A", "B", "--bootstrap", "3"], 2, "3 bootstrap samples are too few"),
        (["fit", "A", "B", "--absent", "x^3"], 2, "no term 'x^3'"),
        (["fit", "A", "B", "--zeros"], 1, "none below 0"),
        (["fit", "A", "B", "--group", "x"], 2, "--group divides one table, but there are 2 files"),
        (["fit", "A", "--group", "site"], 2, "has no column 'site'"),
        (["fit", "A", "B", "--column", "x"], 2, "give --group, too"),
        (["fit", "A", "B", "--out", "nowhere/page.html"], 2, "folder 'nowhere' does not exist"),
        (["fit", "A", "B", "--out", "x.gif"], 2, "end its name in .png"),
        (["fit"], 2, "Missing argument"),
        (["drift", "--rounds", "1"], 2, "--rounds"),
        (["tradeoff", "--seed", "-1"], 2, "--seed"),
        (["tradeoff", "--out", "x.gif"], 2, "end its name in .png"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], code: int, says: str, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    named = {"A": files[0], "B": files[1]}
    got, out, err = call(capsys, *(named.get(word, word) for word in words))
    assert (got, out) == (code, "")
    assert err.startswith("feddrm: error: ")
    assert err.count("\n") == 1
    assert says in err


def test_separated_files_name_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, start in (("low", 0), ("high", 100)):
        (tmp_path / f"{name}.csv").write_text("".join(f"{start + i}\n" for i in range(9)))
    words = ("fit", str(tmp_path / "low.csv"), str(tmp_path / "high.csv"), "--basis", "identity")
    code, _, err = call(capsys, *words)
    assert code == 1
    assert "'low' and 'high'" in err
    assert "--ridge 1.0" in err
    assert call(capsys, *words, "--ridge", "1.0")[0] == 0


@pytest.mark.parametrize(
    ("cells", "options", "says"),
    [
        ({"a": range(9), "b": range(100, 109)}, [], "the basis separates 'a' and 'b' perfectly"),
        ({"a": range(9), "b": range(100, 109)}, ["--basis", "auto"], "name one; the last that was tried: the basis "
         "separates 'a' and 'b' perfectly"),
        ({"a": range(9), "b": [3] * 9}, [], "'b' is constant: all its 9 observations are equal: leave it out"),
        ({"a": range(9), "b": [1, 2]}, [], "'b' has 2 observations for the 3 parameters of its tilt: give more"),
        ({"a": range(9), "b": [1, 2]}, ["--basis", "auto"], "'b' has 2 observations, too few to hold out a fifth"),
        ({"a": [1, 2, 3, 0], "b": range(1, 9)}, ["--basis", "gamma"], "'a': the gamma basis takes logarithms, but "
         "observation 4 is 0: shift"),
        ({"a": [1, 2, 3, 0], "b": range(1, 9)}, ["--basis", "~ log(x)"], "at observation 4: scale the data"),
        ({"a": [1, 2, "two"], "b": range(9)}, [], "line 4, column x: 'two' is not a finite number: correct it"),
        ({"a": [1, 2, ""], "b": range(9)}, [], "line 4, column x: '' is not a finite number: correct it"),
        ({"a": range(9)}, [], "two populations, but there is 1: give one more"),
        ({"a": [0] * 9, "b": range(9)}, ["--zeros"], "'a' has 0 positive observations: give at least 2"),
    ],
)  # fmt: skip
def test_what_a_table_lacks_is_named_with_its_file(
    cells: dict[str, list[object]], options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "visits.csv"
    table.write_text("site,x\n" + "".join(f"{site},{x}\n" for site, column in cells.items() for x in column))
    code, out, err = call(capsys, "fit", str(table), "--group", "site", *options)
    assert (code, out) == (1, "")
    assert err.startswith(f"feddrm: error: {table}")
    assert err.count("\n") == 1
    assert says in err


def test_the_example_overwrites_nothing(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    before = Path(files[0]).read_bytes()
    code, _, err = call(capsys, "example", str(Path(files[0]).parent), "--seed", "1")
    assert code == 1
    assert "exists and is not overwritten" in err
    assert Path(files[0]).read_bytes() == before


@pytest.mark.parametrize("verb", ["fit", "example", "drift", "tradeoff"])
def test_help_has_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, verb, "--help")
    assert code == 0
    assert f"Example: feddrm drm {verb}" in " ".join(out.split())
