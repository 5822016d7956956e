"""The pages of the documentation site that are made from other files and from the program itself."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import nbformat
import pytest
import typer
from matplotlib import pyplot

import feddrm
import linked_files
from cli_page import command_reference
from documentation import ROOT
from feddrm.cli.app import app
from feddrm.io import run_files
from feddrm.router import artifact
from markdown_table import table
from notebook_page import page_of
from plain_docstrings import plain
from run_notebooks import EXECUTED, code_digest

PAGES = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository: pages that name a result, a folder of results, and each other."""
    monkeypatch.setattr(linked_files, "ROOT", tmp_path)
    monkeypatch.setattr(linked_files, "DOCS", tmp_path / "docs")
    files = {
        "README.md": "# Front\n[guide](docs/guide.md)\n",
        "NEWS.md": "# News\n[guide](docs/guide.md#top) [source](src/a.py)\n",
        "docs/guide.md": "# Guide\n[speed](../results/speed.json), [all](../results/paper), [front](../README.md)\n"
        "[news](../NEWS.md) [here](#top) [web](https://example.org/a.md) [gone](../gone.json)\n"
        "```\n[no link](../secret.txt)\n```\n",
        "docs/deep/one.md": "[book](../book.ipynb) ![picture](../picture.png)\n",
        "docs/book.ipynb": "{}",
        "docs/picture.png": "",
        "results/speed.json": "{}",
        "results/paper/README.md": "# Cells\n[source](../../src/a.py)\n",
        "results/paper/b.md": "# Title of b\n",
        "results/paper/a.json": "{}",
        "src/a.py": "",
        "secret.txt": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_links_lead_to_places_of_the_site(repository: Path) -> None:
    guide, deep = repository / "docs" / "guide.md", repository / "docs" / "deep" / "one.md"
    assert linked_files.rewritten(guide.read_text(), guide) == (
        "# Guide\n[speed](results/speed.json), [all](results/paper/README.md), [front](index.md)\n"
        "[news](NEWS.md) [here](#top) [web](https://example.org/a.md) [gone](../gone.json)\n"
        "```\n[no link](../secret.txt)\n```\n"
    )
    assert linked_files.rewritten(deep.read_text(), deep) == "[book](../book.md) ![picture](../picture.png)\n"
    news = repository / "NEWS.md"
    assert linked_files.rewritten(news.read_text(), news) == "# News\n[guide](guide.md#top) [source](src/a.py)\n"


def test_what_a_page_names_outside_docs_is_published(repository: Path) -> None:
    found = linked_files.outside([repository / "docs" / "guide.md"])
    assert {path.relative_to(repository).as_posix() for path in found} == {
        *("NEWS.md", "src/a.py", "results/speed.json"),
        *("results/paper", "results/paper/a.json", "results/paper/b.md"),  # its README becomes the folder's page
    }


def test_a_folder_has_a_page_with_its_files(repository: Path) -> None:
    folder = repository / "results" / "paper"
    listed = "\n- [a.json](a.json)\n- [Title of b](b.md)\n"
    assert linked_files.folder_page(folder) == "# Cells\n[source](../../src/a.py)\n" + listed
    (folder / "README.md").unlink()
    assert linked_files.folder_page(folder) == "# results/paper\n" + listed


@pytest.mark.parametrize("page", sorted(path.name for path in ROOT.glob("*.md")))
def test_every_link_of_a_page_beside_docs_exists(page: str) -> None:
    """MkDocs checks the links of all pages of the site; the README is none."""
    assert [link for link in linked_files.links(ROOT / page) if not (ROOT / link).exists()] == []


def misread_lines(text: str) -> list[int]:
    """Lines that GitHub shows as a list, a table or part of a list item, and MkDocs does not."""
    begins = re.compile(r"(?:[-*]|1\.) |\|")
    continues = re.compile(r"(?:[-*]|\d+\.) |\||#| {2}|<!--")
    lines, wrong, fenced = ["", *text.splitlines()], [], False
    for number, (before, line) in enumerate(pairwise(lines), start=1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        glued = begins.match(line) and not continues.match(before) if before else re.match(r" {1,3}\S", line)
        if glued and not fenced:
            wrong.append(number)
    return wrong


def test_a_list_a_table_or_a_paragraph_that_mkdocs_would_misread_is_found() -> None:
    assert misread_lines("Text:\n- a\n- b\n\nText:\n| a |\n|---|\n\n- a\n\n  more of a\n") == [2, 6, 11]
    assert misread_lines("Text:\n\n- a\n  b\n- c\n\n    more of c\n\n```\nText\n- a\n```\n# A\n- b\n") == []


@pytest.mark.parametrize("page", PAGES)
def test_mkdocs_reads_lists_and_tables_as_github_does(page: str) -> None:
    assert misread_lines((ROOT / page).read_text()) == []


def test_a_table_survives_bars_and_line_breaks() -> None:
    assert table(("a", "b"), [("x | y", "two\n lines")]) == "| a | b |\n| --- | --- |\n| x \\| y | two lines |"


def all_commands(command: click.Command, path: str) -> list[tuple[str, click.Command]]:
    members = command.commands.items() if isinstance(command, click.Group) else ()
    return [(path, command), *(pair for name, member in members for pair in all_commands(member, f"{path} {name}"))]


def test_the_reference_has_every_command_and_option() -> None:
    page = command_reference()
    sections = {part.partition("\n")[0]: part for part in re.split(r"^##+ ", page, flags=re.MULTILINE)[1:]}
    commands = all_commands(typer.main.get_command(app), "feddrm")
    assert list(sections) == [path for path, _ in commands]
    assert len(commands) > 40
    for path, command in commands:
        if isinstance(command, click.Group):
            assert all(f"[{path} {name}](#" in sections[path] for name in command.commands)
        else:
            shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
            options = [name for parameter in shown for name in parameter.opts if name.startswith("--")]
            assert [name for name in options if name not in sections[path]] == []
            assert "```shell\nfeddrm " in sections[path], f"{path} has no example"


def test_the_reference_of_python_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    assert [name for name in feddrm.__all__ if f"feddrm.{name}" not in page] == []


def test_docstrings_lose_the_marks_of_sphinx_and_keep_their_examples() -> None:
    text = (
        "As :func:`train` and :meth:`Run.predict`.\n\nExample:\n    >>> [run['a'] for run in runs]\n\nExample: a word"
    )
    shown = "As `train` and `Run.predict`.\n\nExamples:\n    >>> [run['a'] for run in runs]\n\nExample: a word"
    assert plain(text) == shown


def test_the_reference_of_files_names_every_file_of_a_run() -> None:
    page = (ROOT / "docs" / "reference" / "files.md").read_text()
    run = run_files.RunFiles("run")
    paths = [path for part in (run, run.client("oslo")) for path in vars(part).values()][1:]
    names = {path.name for path in paths} - {"oslo"}
    names |= {run_files.CHECKPOINT, artifact.MANIFEST, artifact.ROUTER, artifact.TRUNK, artifact.HEADS}
    assert len(names) > 20
    assert [name for name in sorted(names) if name not in page] == []


@pytest.mark.slow
def test_the_reference_of_http_has_every_path_and_object() -> None:
    pytest.importorskip("fastapi", reason="pip install 'feddrm[serve]' to run this")
    from http_page import documents, http_reference

    page, both = http_reference(), documents()
    assert list(both) == ["gateway", "predictor"]
    assert "### POST /v1/predict\n" in page
    assert "| `label_miss` | number or null | optional | also give the set of labels" in page
    assert "| 429 | too busy: see Retry-After | [ErrorAnswer](#gateway-erroranswer) |" in page
    for name, document in both.items():
        for path, operations in document["paths"].items():
            assert all(f"### {method.upper()} {path}" in page for method in operations)
        assert all(f"{{ #{name}-{title.lower()} }}" in page for title in document["components"]["schemas"])
    linked, anchors = re.findall(r"\(#([\w-]+)\)", page), re.findall(r"\{ #([\w-]+) \}", page)
    assert set(linked) <= set(anchors)


def undescribed(value: Any, place: str = "") -> Iterator[str]:
    """The fields and parameters of an OpenAPI document that say nothing about themselves."""
    if isinstance(value, list):
        for member in value:
            yield from undescribed(member, place)
    elif isinstance(value, dict):
        if "in" in value and "schema" in value and not value.get("description"):
            yield f"{place}: parameter {value['name']}"
        if value.get("type") == "object":
            fields = value.get("properties", {}).items()
            yield from (f"{place}: {name}" for name, field in fields if not field.get("description"))
        for key, inner in value.items():
            yield from undescribed(inner, f"{place}/{key}")


@pytest.mark.slow
def test_every_field_and_parameter_of_http_is_described() -> None:
    pytest.importorskip("fastapi", reason="pip install 'feddrm[serve]' to run this")
    from http_page import documents

    for document in documents().values():
        # FastAPI's own objects, for errors that this server never answers with.
        own = document["components"]["schemas"].keys() - {"HTTPValidationError", "ValidationError"}
        schemas = {name: document["components"]["schemas"][name] for name in own}
        assert len(schemas) > 5
        assert [*undescribed(document["paths"]), *undescribed(schemas)] == []
    blank = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert list(undescribed({"x": {"anyOf": [blank]}})) == ["/x/anyOf: a"]
    assert list(undescribed([{"name": "b", "in": "query", "schema": {}}])) == [": parameter b"]


def test_a_notebook_becomes_a_page(tmp_path: Path) -> None:
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["one\n"]},
        {"output_type": "display_data", "data": {"image/png": "aGk=\n", "text/plain": "<Figure>"}},
        {"output_type": "stream", "name": "stdout", "text": ["two\n"]},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Text."]},
        {"cell_type": "code", "source": ["draw()"], "outputs": outputs},
        {"cell_type": "code", "source": ["pass"], "outputs": []},
    ]
    path = tmp_path / "book.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    assert page_of(path) == (
        "# Title\nText.\n\n```python\ndraw()\n```\n\n```text\none\ntwo\n```\n\n"
        "![What the code above draws](book-1.png)\n\n```python\npass\n```\n",
        {"book-1.png": b"hi"},
    )


def test_there_are_three_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["density_ratios", "first_federation", "no_rounds"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_outputs_of_a_notebook_are_those_of_its_code(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert notebook.metadata[EXECUTED] == code_digest(notebook), "the code has changed: run 'make notebooks'"
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data"}  # no error
    assert {output.name for output in outputs if output.output_type == "stream"} == {"stdout"}  # no warning
    assert len(page_of(path)[1]) >= 2, "pictures"
    assert "/tmp" not in page_of(path)[0]
    assert path.stat().st_size < 300_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["density_ratios", "no_rounds"])
def test_a_notebook_shows_what_its_code_prints(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the last digit, where nothing is trained: the figures of a trained network depend on the processor."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: dict[str, object] = {}
    (path,) = (path for path in NOTEBOOKS if path.stem == name)
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            exec(cell.source, names)
            shown = [output.text for output in cell.outputs if output.output_type == "stream"]
            assert capsys.readouterr().out == "".join(shown), cell.source
    pyplot.close("all")


def test_the_first_notebook_abstains_where_it_says_so() -> None:
    """It showed random pixels, which were answered, under the words that they are not."""
    (path,) = (path for path in NOTEBOOKS if path.stem == "first_federation")
    assert "label: None\nwhy: unlike the training data\n" in page_of(path)[0]


def test_changed_code_changes_the_checksum() -> None:
    cells = [nbformat.v4.new_code_cell(text) for text in ("a", "b")]
    before = code_digest(nbformat.v4.new_notebook(cells=cells))
    assert code_digest(nbformat.v4.new_notebook(cells=cells[::-1])) != before
    words = nbformat.v4.new_markdown_cell("words")
    assert code_digest(nbformat.v4.new_notebook(cells=[words, *cells])) == before


def test_continuous_integration_builds_the_site_strictly_and_runs_the_notebooks() -> None:
    (recipe,) = re.findall(r"^docs:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert "mkdocs build --strict\n" in recipe  # with --quiet, MkDocs would not count its warnings
    assert "--nbmake" in recipe
    assert "\nmake docs\n" in (ROOT / ".ci" / "run").read_text()
