"""``feddrm data``: what it prints and draws, own tables, one-line errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from cli.conftest import assert_one_line, call
from documentation import command_words

pytestmark = pytest.mark.slow


def test_info_prints_the_counts_of_every_client(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("data", "info", "digits", "--clients", "4", "--partition", "dirichlet", "--alpha", "0.5", "--seed", "7")
    code, out, _ = call(capsys, *words, "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["settings"] == {"seed": 7, "clients": 4, "partition": "dirichlet", "alpha": 0.5, "shift": "high"}
    assert len(facts["clients"]) == 4
    assert sum(sum(c["class_counts"]) for c in facts["clients"]) == 1797 == facts["train"] + facts["test"]
    code, out, _ = call(capsys, *words)
    for client in facts["clients"]:
        row = next(line for line in out.splitlines() if line.split()[:1] == [client["name"]])
        assert row.split()[1:13] == [str(n) for n in (client["train"], client["test"], *client["class_counts"])]
        assert row.rstrip().endswith(client["shift"])


def test_of_many_clients_the_largest_and_the_smallest_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("data", "info", "digits", "--clients", "40", "--alpha", "100", "--seed", "7")
    sizes = {c["name"]: c["train"] for c in json.loads(call(capsys, *words, "--json")[1])["clients"]}

    def printed(*options: str) -> list[str]:
        lines = call(capsys, *words, *options)[1].splitlines()
        return [line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in {*sizes, "..."}]

    by_size = sorted(sizes, key=lambda name: -sizes[name])
    assert printed() == [*by_size[:10], "...", *by_size[-10:]]
    by_name = sorted(sizes)
    assert printed("--sort", "name") == [*by_name[:10], "...", *by_name[-10:]]
    assert printed("--find", "FAX") == [name for name in sizes if "fax" in name]
    assert "40 clients with" in call(capsys, *words)[1]


def test_show_writes_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "x.png"
    code, out, err = call(capsys, "data", "show", "digits", "--out", str(target))
    assert (code, out.strip(), err) == (0, f"wrote {target}", "")
    assert target.read_bytes().startswith(b"\x89PNG")


def test_own_tables_are_loaded_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "visits.csv"
    table.write_text("y,a,b,site\n" + "".join(f"{i % 2},{i},1,{'xyz'[i % 3]}\n" for i in range(30)))
    words = ("--set", f"path={table}", "--set", "label=y", "--set", "client=site", "--set", "drop=[b]")
    code, out, _ = call(capsys, "data", "info", "csv", *words, "--json")
    assert code == 0
    facts = json.loads(out)
    assert [c["name"] for c in facts["clients"]] == ["x", "y", "z"]
    assert facts["sample_shape"] == [1]


def test_own_test_tables_are_loaded_again_from_any_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, rows in (("visits.csv", 30), ("later.csv", 12)):
        lines = [f"{i % 2},{i},{'xyz'[i % 3]}\n" for i in range(rows)]
        (tmp_path / name).write_text("y,a,site\n" + "".join(lines))
    monkeypatch.chdir(tmp_path)
    words = [f"--set={text}" for text in ("data.path=visits.csv", "data.label=y", "data.client=site")]
    words = ["train", "--data", "csv", *words, "--set=data.test=later.csv", "--rounds=2", "--out=run"]
    code, _, err = call(capsys, *words)
    assert code == 0, err
    sizes = json.loads((tmp_path / "run" / "data.json").read_text())["clients"]
    assert [(client["train"], client["test"]) for client in sizes] == [(10, 4)] * 3
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, _, err = call(capsys, "fit-router", "../run", "--rounds", "3")
    assert code == 0, err
    given = [f"--set={text}" for text in ("path=../visits.csv", "label=y", "client=site", "test=none.csv")]
    code, _, err = call(capsys, "data", "info", "csv", *given)
    assert (code, err.count("\n")) == (1, 1)
    assert "none.csv does not exist" in err


def test_columns_may_have_any_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Words that YAML reads as true, false or a number stay names where a name is wanted."""
    table = tmp_path / "2024"
    table.write_text("yes,a,no,on,1\n" + "".join(f"{i % 2},{i},1,2,{'xyz'[i % 3]}\n" for i in range(30)))
    words = ("--set", f"path={table}", "--set", "label=yes", "--set", "client=1", "--set", "drop=[no, on]")
    code, out, err = call(capsys, "data", "info", "csv", *words, "--json")
    assert code == 0, err
    facts = json.loads(out)
    assert [c["name"] for c in facts["clients"]] == ["x", "y", "z"]
    assert facts["sample_shape"] == [1]


def test_info_says_how_each_column_is_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A code for a missing value, and a column of codes that is read as numbers, are seen there."""
    table = tmp_path / "visits.csv"
    lines = [f"{i % 2},{(70.5, -99)[i % 10 == 0]},{i % 4},{('m', 'F')[i % 3 == 0]},{'xy'[i % 2]}\n" for i in range(40)]
    table.write_text("y,weight,ward,sex,site\n" + "".join(lines))
    words = ["data", "info", "csv", f"--set=path={table}", "--set=label=y", "--set=client=site", "--set=schema=auto"]
    code, out, _ = call(capsys, *words)
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert code == 0
    assert "weight number -99 to 70.5, median 70.5 0" in rows
    assert "ward number 0 to 3, median 1.5, 4 different 0" in rows
    assert "sex category m 26, F 14 0" in rows
    columns = json.loads(call(capsys, *words, "--json")[1])["columns"]
    assert [column["name"] for column in columns] == ["weight", "ward", "sex"]
    assert columns[2] == {"name": "sex", "kind": "category", "categories": {"m": 26, "F": 14}, "missing": 0}


def test_of_very_many_columns_info_prints_the_number(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for client in "ab":
        np.savez(tmp_path / f"{client}.npz", x=np.random.default_rng(0).normal(size=(20, 61)), y=np.arange(20) % 2)
    words = ("data", "info", "npz", f"--set=path={tmp_path}")
    assert "61 columns, as they are: --json lists them" in call(capsys, *words)[1]
    assert len(json.loads(call(capsys, *words, "--json")[1])["columns"]) == 61


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["data", "info", "digit"], 2, "unknown dataset 'digit'; did you mean 'digits'?"),
        (["data", "info", "digits", "--clients", "many"], 2, "'many' is not a valid int"),
        (["data", "info", "digits", "--clients", "0"], 2, "clients=0: a federation needs at least two"),
        (["data", "info", "digits", "--client", "4"], 2, "No such option"),
        (["data", "info", "csv", "--set", "path=x", "--set", "test_fraction=2"], 2, "give a fraction between 0 and 1"),
        (["data", "info", "csv", "--set", "path=x.csv", "--set", "label=y"], 1, "x.csv does not exist"),
        (["data", "info", "digits", "--set", "colour=red"], 2, "'digits' has no setting 'colour'"),
        (["data", "info", "digits", "--partition", "shards", "--shards", "999"], 2, "ask for fewer shards"),
        (["data", "info", "heart", "--clients", "4"], 2, "'heart' has no setting 'clients'"),
        (["data", "info", "csv"], 2, "needs to know where your data are"),
        (["data", "info", "csv", "--set", "path=x.csv"], 2, "needs to know which column to predict"),
        (["data", "info", "folders", "--set", "path=nowhere"], 1, "nowhere"),
        (["data", "info", "cifar10"], 1, "no files of 'cifar10'"),
        (["data", "show", "digits", "--out", "x.gif"], 2, "end its name in .png"),
        (["data", "info"], 2, "Missing argument"),
        (["data", "info", "digits", "--find", "nobody"], 2, "--find 'nobody': no client's name contains it"),
        (["data", "info", "digits", "--sort", "tests"], 2, "unknown --sort 'tests'"),
        (["data", "info", "digits", "--set", "seed=1.5"], 2, "seed='1.5': give a whole number"),
        (["data", "info", "digits", "--set", "name=x"], 2, "'digits' has no setting 'name'"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str], no_data: Path
) -> None:
    assert_one_line(call(capsys, *words), code, says)


def test_a_schema_is_drafted_and_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Without it, data info and train warn on standard error; with it they do not."""
    table = tmp_path / "visits.csv"
    table.write_text("y,a,b,site\n" + "".join(f"{i % 2},{i},{1000 * i},{'xyz'[i % 3]}\n" for i in range(30)))
    words = [f"--set=path={table}", "--set=label=y", "--set=client=site"]
    code, _, err = call(capsys, "data", "info", "csv", *words)
    assert code == 0
    assert err.startswith("warning: visits: column 'b' has a mean of 1")
    assert err.count("\n") == 1
    code, out, err = call(capsys, "data", "schema", str(table), "--label", "y", "--client", "site")
    assert (code, err) == (0, "")
    drafted = ("data", "schema", str(table), "--label", "y", "--client", "site", "--out", str(tmp_path / "schema.yaml"))
    assert call(capsys, *drafted)[0] == 0
    assert (tmp_path / "schema.yaml").read_text() == out
    assert_one_line(call(capsys, *drafted), 1, "schema.yaml exists: choose another --out")
    code, out, err = call(capsys, "data", "info", "csv", *words, f"--set=schema={tmp_path / 'schema.yaml'}")
    assert (code, err) == (0, "")
    assert re.search(r"columns, as schema [0-9a-f]{12} reads them", out)
    code, out, err = call(capsys, *drafted[:-2], "--categories", "a", "--categories", "b")
    assert (code, err, out.count("\n  kind: category")) == (0, "", 2)
    failed = call(capsys, "data", "schema", str(table), "--label", "z")
    assert_one_line(failed, 1, "no column 'z' to leave out")


def test_the_commands_of_the_documentation_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *block, auto = command_words("docs/tables.md")
    lines = [f"{i % 2},{20 + i},{('yes', 'no', '')[i % 3]},{'xyz'[i % 3]}\n" for i in range(30)]
    (tmp_path / "visits.csv").write_text("outcome,age,smoker,hospital\n" + "".join(lines))
    monkeypatch.chdir(tmp_path)
    for command in block:
        code, out, err = call(capsys, *command[1:])
        assert (code, err) == (0, "")
    *_, age, smoker = out.strip().splitlines()
    assert age.split() == ["age", "number", "20", "to", "49,", "median", "34.5", "0"]
    assert smoker.split() == ["smoker", "category", "no", "10,", "yes", "10", "10"]
    assert_one_line(call(capsys, *block[0][1:]), 1, "schema.yaml exists")
    code, out, err = call(capsys, *auto[1:], "--rounds", "1")
    assert code == 0, err
    names = [column["name"] for column in json.loads(Path("runs/visits/data.json").read_text())["schema"]["columns"]]
    assert names == ["age", "smoker"]
