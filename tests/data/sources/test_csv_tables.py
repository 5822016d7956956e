"""Samples from CSV tables."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feddrm.data import Federation
from feddrm.data.partition import split
from refusal import refused

from_csv = Federation.from_csv

HEADER = "age,chol,ill"
OSLO = "\n".join([HEADER, "50,200.5,no", "60,-1e2,yes", "70,300,no", "80,.5,yes", ""])
LIMA = "\n".join(["chol,ill,age", "1,yes,2", "3,no,4", "5,yes,6", ""])


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two clients; the second orders its columns differently."""
    (tmp_path / "oslo.csv").write_text(OSLO)
    (tmp_path / "lima.csv").write_text(LIMA)
    return [tmp_path / "oslo.csv", tmp_path / "lima.csv"]


def one(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "all.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


# Values


def test_one_file_per_client(files: list[Path]) -> None:
    fed = from_csv(files, label="ill", seed=4)
    assert (fed.names, fed.classes, fed.columns) == (("oslo", "lima"), ("no", "yes"), ("age", "chol"))
    assert fed.source == f"{files[0]}, {files[1]}"
    want = {"label": "ill", "client": None, "drop": [], "test": "split", "test_fraction": 0.3, "seed": 4}
    assert fed.settings == want
    (first, rest), (lima, _) = split([np.arange(4), np.arange(3)], np.random.RandomState(4))
    oslo_rows = np.array([[50, 200.5], [60, -100], [70, 300], [80, 0.5]])
    assert fed.clients[0].train.x.dtype == torch.float32
    assert fed.clients[0].train.x.tolist() == oslo_rows[first].tolist()
    assert fed.clients[0].test.x.tolist() == oslo_rows[rest].tolist()
    assert fed.clients[0].train.y.tolist() == (first % 2).tolist()
    assert fed.clients[1].train.x.tolist() == np.array([[2, 1], [4, 3], [6, 5]])[lima].tolist()
    assert fed.clients[1].train.y.tolist() == (1 - lima % 2).tolist()


def test_paths_in_every_form(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / ".hidden.csv").write_text("junk")
    (tmp_path / "README.txt").write_text("junk")
    assert from_csv(tmp_path, label="ill").names == ("lima", "oslo")
    assert from_csv(str(tmp_path), label="ill").name == tmp_path.name
    assert from_csv([str(f) for f in files], label="ill").names == ("oslo", "lima")
    named = Federation.from_csv({"Oslo": files[0], "Lima": str(files[1])}, label="ill", name="towns")
    assert (named.name, named.names) == ("towns", ("Oslo", "Lima"))


def test_one_file_with_a_client_column(tmp_path: Path) -> None:
    path = one(tmp_path, "x,town,y", "1,oslo,0", "2,lima,1", "3,oslo,1", "4,lima,0")
    fed = from_csv(path, label="y", client="town", test_fraction=0.5)
    assert (fed.name, fed.names, fed.columns) == ("all", ("oslo", "lima"), ("x",))
    kept = [sorted(torch.cat([c.train.x, c.test.x])[:, 0].tolist()) for c in fed.clients]
    assert kept == [[1, 3], [2, 4]]


def test_test_files_are_matched_by_name(files: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "held out"
    folder.mkdir()
    (folder / "lima.csv").write_text("ill,age,chol\nno,7,8\n")
    (folder / "oslo.csv").write_text("ill,age,chol\nyes,9,10\nno,11,12\n")
    fed = from_csv(files, label="ill", test=folder)
    assert fed.settings["test"] == "given"
    assert [len(c.train) for c in fed.clients] == [4, 3]
    assert fed.clients[0].test.x.tolist() == [[9, 10], [11, 12]]
    assert fed.clients[0].test.y.tolist() == [1, 0]
    assert fed.clients[1].test.x.tolist() == [[7, 8]]


def test_test_tables_may_lack_the_dropped_columns(tmp_path: Path) -> None:
    train = one(tmp_path, "id,x,town,y", "a,1,oslo,0", "b,2,lima,1")
    test = tmp_path / "test.csv"
    test.write_text("y,town,x\n1,lima,5\n0,oslo,6\n")
    fed = from_csv(train, label="y", client="town", drop=["id"], test=test)
    assert [c.test.x.tolist() for c in fed.clients] == [[[6]], [[5]]]
    assert fed.settings["drop"] == ["id"]


def test_drop_one_column_by_its_bare_name(tmp_path: Path) -> None:
    path = one(tmp_path, "id,x,town,y", *[f"a{i},{i},{'ab'[i % 2]},{i // 2 % 2}" for i in range(8)])
    assert from_csv(path, label="y", client="town", drop="id").columns == ("x",)


def test_whole_numbers_are_one_class_however_written(tmp_path: Path) -> None:
    path = one(tmp_path, "x,c,y", "1,a,10", "2,a,2", "3,b,2.0", "4,b,010")
    fed = from_csv(path, label="y", client="c", test_fraction=0.5)
    assert fed.classes == ("2", "10")
    assert fed.counts().tolist() == [[1, 1], [1, 1]]


def test_a_byte_order_mark_spaces_blank_lines_and_quotes(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    text = 'x , c,"y"\r\n\r\n 1,a,"no, never"\r\n2,a,yes\r\n3,b,yes\r\n,,\r\n4,b,"no, never"\r\n'
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    fed = from_csv(path, label="y", client="c", test_fraction=0.5)
    assert (fed.columns, fed.classes) == (("x",), ("no, never", "yes"))
    assert len(fed.clients[0].train) + len(fed.clients[0].test) == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.floats(width=32, allow_nan=False, allow_infinity=False), st.booleans()), min_size=4))
def test_numbers_survive_the_file_to_the_last_bit(tmp_path: Path, rows: list[tuple[float, bool]]) -> None:
    path = tmp_path / "all.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["x", "c", "y"])
        # Both clients hold every row, and one row more of each class.
        for client in "ab":
            writer.writerows([[0.0, client, True], [0.0, client, False], *([x, client, y] for x, y in rows)])
    fed = from_csv(path, label="y", client="c")
    for client in fed.clients:
        x = torch.cat([client.train.x, client.test.x])[:, 0]
        y = torch.cat([client.train.y, client.test.y])
        assert sorted(zip(x.tolist(), y.tolist(), strict=True)) == sorted(
            [(0.0, 0), (0.0, 1), *((x, int(y)) for x, y in rows)]
        )


# Errors: each names the file and the line in the file


def broken(tmp_path: Path, *lines: str, **options: Any) -> Any:
    return from_csv(one(tmp_path, *lines), **{"label": "y", "client": "c"} | options)


def test_files_that_cannot_be_read(tmp_path: Path, files: list[Path]) -> None:
    with refused(f"{tmp_path / 'nowhere.csv'} does not exist", "give the path"):
        from_csv([*files, tmp_path / "nowhere.csv"], label="ill")
    (tmp_path / "folder.csv").mkdir()
    with refused(f"{tmp_path / 'folder.csv'} cannot be read", "readable"):
        from_csv([*files, tmp_path / "folder.csv"], label="ill")
    with refused(f"{tmp_path / 'folder.csv'} holds no .csv file", "one per client"):
        from_csv(tmp_path / "folder.csv", label="ill")
    for wrong in (None, 3, [([1.0], [0])], {"oslo": ([1.0], [0])}):
        with refused("give a path or a DataFrame or a list, each item a path or a dict, each value"):
            from_csv(wrong, label="ill")
    with refused("no files given"):
        from_csv([], label="ill")
    path = tmp_path / "all.csv"
    for empty in ("", "\n\n"):
        path.write_text(empty)
        with refused(f"{path} is empty", "header and rows"):
            from_csv([*files, path], label="ill")
    path.write_text(HEADER + "\n")
    with refused(f"{path} has a header but no rows", "leave it out"):
        from_csv([*files, path], label="ill")
    path.write_bytes("age,chol,ill\n1,2,müde\n".encode("latin-1"))
    with refused(f"{path} is not UTF-8", "save it as CSV in UTF-8"):
        from_csv([*files, path], label="ill")
    path.write_text('age,chol,ill\n1,2,no\n1,2,"no\n')
    with refused(f"{path}, line 3: not valid CSV", "correct it there"):
        from_csv([*files, path], label="ill")


def test_a_single_file_needs_a_client_column(files: list[Path]) -> None:
    with refused(f"{files[0]} is the only file", "client="):
        from_csv(files[0], label="ill")


def test_wrong_headers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    with refused(f"{path}: column 'x' appears twice", "rename"):
        broken(tmp_path, "x,c,x,y", "1,a,2,0")
    with refused(f"{path}: column 1 has no name", "index=False"):
        broken(tmp_path, ",x,c,y", "0,1,a,0")
    with refused(f"{path}: column 2 is called 'c,y\\n1,a,0'", "check the quotes"):
        broken(tmp_path, 'x,"c,y', '1,a,0"', "1,2")
    with refused(f"{path} has no column 'answer' for the label; did you mean 'answers'?", "one of x, c, answers"):
        broken(tmp_path, "x,c,answers", "1,a,0", label="answer")
    with refused(f"{path} has no column 'c' for the client", "one of x, town, y"):
        broken(tmp_path, "x,town,y", "1,a,0")
    with refused("label and client are both column 'y'", "two columns"):
        broken(tmp_path, "x,c,y", "1,a,0", client="y")
    with refused(f"{path} has no column 'idd' to drop; did you mean 'id'?", "take it out of drop"):
        broken(tmp_path, "id,x,c,y", "1,1,a,0", drop=["idd"])
    with refused("column 'y' is the label", "take it out of drop"):
        broken(tmp_path, "x,c,y", "1,a,0", drop=["y"])
    with refused(f"{path} has no columns left", "keep at least one"):
        broken(tmp_path, "x,c,y", "1,a,0", drop=["x"])


def test_wrong_rows_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    with refused(f"{path}, row 4: 2 cells, but the header has 3", "quote cells"):
        broken(tmp_path, "x,c,y", "1,a,0", "", "2,a")
    with refused(f"{path}, row 2: 4 cells, but the header has 3"):
        broken(tmp_path, "x,c,y", "1,5,a,0")
    with refused(
        f"{path}, row 3: column 'x' is 'tall', not a number",
        "encode it",
        "schema=auto, which makes categories",
        "drop=['x']",
    ):
        broken(tmp_path, "x,c,y", "1,a,0", "tall,a,1")
    with refused(f"{path}, row 3: column 'x' is '1,5', not a number", "decimal point"):
        broken(tmp_path, "x;c;y", "1;a;0", "1,5;a;1")
    with refused(f"{path}, row 2: column 'x' is '1_000', not a number"):
        broken(tmp_path, "x,c,y", "1_000,a,0")
    for missing in ("", " ", "?", "NA", "NaN", "null"):
        with refused(
            f"{path}, row 3: column 'x' has no value ('{missing.strip()}')",
            "schema=auto, which allows gaps",
            "drop=['x']",
        ):
            broken(tmp_path, "x,c,y", "1,a,0", f"{missing},a,1")
    for far in ("inf", "-Infinity", "1e300"):
        with refused(f"{path}, row 2: column 'x' is '{far}', not a finite 32-bit number", "drop=['x']"):
            broken(tmp_path, "x,c,y", f"{far},a,1")
    with refused(f"{path}, row 3: no value for the label (column 'y' is '')", "remove the row"):
        broken(tmp_path, "x,c,y", "1,a,0", "1,a,")
    with refused(f"{path}, row 3: no value for the client (column 'c' is '')", "remove the row"):
        broken(tmp_path, "x,c,y", "1,a,0", "1,,1")
    with refused(f"{path}, row 3: label '0.53' is a measurement", "divide it into classes"):
        broken(tmp_path, "x,c,y", "1,a,0", "1,b,0.53")
    with refused(f"{path}, row 3: label 'inf' is a measurement"):
        broken(tmp_path, "x,c,y", "1,a,0", "1,b,inf")


def test_a_quoted_line_break_does_not_shift_the_row_number(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    with refused(f"{path}, row 4: column 'x' is 'tall'"):
        broken(tmp_path, "note,x,c,y", '"a', 'b",1,a,0', "a,tall,a,1", drop="note")
    for name, row in (("c", '1,"a'), ("y", '1,a,"0')):
        with refused(f"{path}, row 2: column '{name}' is", "check the quotes"):
            broken(tmp_path, "x,c,y", row, 'a"' if name == "y" else 'a",0')


def test_files_with_different_columns(files: list[Path]) -> None:
    files[1].write_text("age,ill\n1,no\n2,yes\n")
    with refused(f"{files[1]} has no column 'chol'", "drop=['chol']"):
        from_csv(files, label="ill")
    assert from_csv(files, label="ill", drop=["chol"]).columns == ("age",)
    files[1].write_text("age,chol,ill,more\n1,1,no,1\n2,2,yes,1\n")
    with refused(f"{files[1]} has a column 'more' that others lack", "drop=['more']"):
        from_csv(files, label="ill")
    assert from_csv(files, label="ill", drop=["more"]).columns == ("age", "chol")


def test_wrong_clients_are_refused(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "Oslo.csv").write_text(OSLO)
    with refused("duplicate client name 'Oslo'", "rename"):
        from_csv([*files, tmp_path / "b" / "Oslo.csv"], label="ill")
    with refused("duplicate client name 'A'", "rename"):
        broken(tmp_path, "x,c,y", "1,a,0", "1,A,1")
    with refused("at least two clients, got 1"):
        broken(tmp_path, "x,c,y", "1,a,0", "1,a,1")
    with refused("client 'b' has too few samples (1)", "test_fraction=0.3"):
        broken(tmp_path, "x,c,y", "1,a,0", "1,a,1", "1,b,0")
    with refused("every sample has the label 1", "another class"):
        broken(tmp_path, "x,c,y", "1,a,1", "1,b,1.0")


def test_wrong_test_files_are_refused(files: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "held"
    folder.mkdir()
    lima, oslo = folder / "lima.csv", folder / "oslo.csv"
    oslo.write_text(OSLO)
    with refused("client 'lima' has no test data"):
        from_csv(files, label="ill", test=[oslo])
    lima.write_text("age,chol,ill\n1,2,no\n1,2,maybe\n")
    with refused(f"{lima}, row 3: label 'maybe' is not one of the classes (no, yes)", "correct it"):
        from_csv(files, label="ill", test=folder)
    lima.write_text("age,chol,ill\n1,2,no\n1,?,yes\n")
    with refused(f"{lima}, row 3: column 'chol' has no value"):
        from_csv(files, label="ill", test=folder)
    lima.write_text("age,ill\n1,no\n")
    with refused(f"{lima} has no column 'chol'"):
        from_csv(files, label="ill", test=folder)
    (folder / "limo.csv").write_text(LIMA)
    with refused("test data for client 'limo'", "did you mean 'lima'?"):
        from_csv(files, label="ill", test={"oslo": oslo, "limo": folder / "limo.csv"})
    (folder / "b").mkdir()
    (folder / "b" / "oslo.csv").write_text(OSLO)
    lima.write_text(LIMA)
    with refused(f"{folder / 'b' / 'oslo.csv'}: there is another file for client 'oslo'", "rename"):
        from_csv(files, label="ill", test=[lima, oslo, folder / "b" / "oslo.csv"])


def test_numbered_training_labels_and_named_test_labels(tmp_path: Path) -> None:
    test = tmp_path / "test.csv"
    test.write_text("x,c,y\n1,a,no\n1,b,1\n")
    with refused(f"{test}, row 2: label 'no' is text", "one kind"):
        broken(tmp_path, "x,c,y", "1,a,0", "1,b,1", test=test)


def test_codes_of_many_digits_stay_apart(tmp_path: Path) -> None:
    """SNOMED CT has codes of up to 18 digits; a float tells 15 apart."""
    codes = (9007199254740992, 9007199254740993, 900000000000207008)
    path = one(tmp_path, "x,c,y", *(f"{i},{'ab'[i % 2]},{codes[i % 3]}" for i in range(24)))
    fed = from_csv(path, label="y", client="c")
    assert fed.classes == tuple(map(str, codes))
    assert fed.counts().tolist() == [[4, 4, 4], [4, 4, 4]]


def test_an_exponent_makes_a_name(tmp_path: Path) -> None:
    path = one(tmp_path, "x,c,y", *(f"{i},{'ab'[i % 2]},{('1E50', '1E51')[i // 2 % 2]}" for i in range(16)))
    assert from_csv(path, label="y", client="c").classes == ("1E50", "1E51")


def test_one_letter_in_one_character_or_in_two(tmp_path: Path) -> None:
    """Files from different systems write the same word differently; nobody can see it."""
    one_way, other = "k\u00f6", "ko\u0308"
    cells = [f"{i},{(one_way, other, 'x')[i % 3]},{(other, one_way, 'y')[i // 3 % 3]}" for i in range(36)]
    path = one(tmp_path, f"{other}n,client,{one_way}ln", *cells)
    fed = from_csv(path, label=f"{other}ln", client="client")
    assert fed.names == (one_way, "x")
    assert set(fed.classes) == {one_way, "y"}
    assert fed.columns == (f"{one_way}n",)
    assert fed.counts().sum() == 36
    (tmp_path / "oslo.csv").write_text(f"{one_way},z,y\n1,2,a\n3,4,b\n5,6,a\n7,8,b\n")
    (tmp_path / "lima.csv").write_text(f"z,y,{other}\n2,a,1\n4,b,3\n6,a,5\n8,b,7\n")
    files = [tmp_path / "oslo.csv", tmp_path / "lima.csv"]
    assert from_csv(files, label="y").columns == (one_way, "z")
    assert from_csv(files, label="y", drop=[other]).columns == ("z",)


def test_a_missing_label_is_shown_in_the_error(tmp_path: Path) -> None:
    path = one(tmp_path, "x,c,y", "1,a,mild", "2,b,None")
    with refused(f"{path}, row 3: no value for the label (column 'y' is 'None')", "rename the value"):
        from_csv(path, label="y", client="c")


def test_true_and_false_in_two_spellings(tmp_path: Path) -> None:
    path = one(tmp_path, "x,c,y", "1,a,True", "2,a,False", "3,b,TRUE", "4,b,FALSE")
    with refused("the classes 'FALSE' and 'False' differ only in case"):
        from_csv(path, label="y", client="c")


def test_a_path_that_is_not_there_and_a_list_that_is_none(tmp_path: Path) -> None:
    with refused("nowhere.csv does not exist", "a folder of them"):
        from_csv(tmp_path / "nowhere.csv", label="y")
    path = one(tmp_path, "x,z,c,y", "1,2,a,0", "2,3,b,1")
    with refused("has no column 'x,z' to drop", "write several as a list, [a, b]"):
        from_csv(path, label="y", client="c", drop="x,z")


def test_a_compressed_table_in_a_folder_is_not_passed_over(tmp_path: Path) -> None:
    for name in ("oslo.csv", "lima.csv", "pune.csv.gz", "notes.txt", "photos.zip"):
        (tmp_path / name).write_text("x,y\n" + "1,0\n2,1\n" * 4)
    with refused("pune.csv.gz is compressed: unpack it, or move it away"):
        from_csv(tmp_path, label="y")
    (tmp_path / "pune.csv.gz").unlink()
    assert from_csv(tmp_path, label="y").names == ("lima", "oslo")
