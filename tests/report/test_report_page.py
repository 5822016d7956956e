"""Tests of the report's page and files: content, escaping, self-containment, and all files or none."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feddrm.data import Federation
from feddrm.errors import FeddrmError, SettingError
from feddrm.io.page_files import icon_url
from feddrm.report.accuracy_measures import Measure
from feddrm.report.client_views.client_overview import edges
from feddrm.report.report_page import write_report
from feddrm.report.run_record import RunRecord
from feddrm.report.run_table import report_table

pytestmark = pytest.mark.slow

MakeRun = Callable[..., Path]
VOID = {"meta", "br", "img", "link", "hr", "input"}
FILES = ["report.html", "table.csv", "table.tex"]


class Page(HTMLParser):
    """Reads a page strictly: every element is closed in order, every id is its own."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.headings: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("h1", "h2", "h3"):
            self.headings.append("")
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if {"h1", "h2", "h3"} & set(self.open):
            self.headings[-1] += data
        if "td" in self.open or "th" in self.open:
            self.cells[-1] += data

    def attributes(self, name: str) -> list[str]:
        return [value for _, attrs in self.tags if (value := attrs.get(name)) is not None]


def write_for(folders: Sequence[Path], out: Path) -> Path:
    return write_report(report_table(folders), out)


def without_figures(folder: Path) -> Path:
    """The run without the files of which most figures are drawn, which takes most of the time of a page."""
    for name in ("evaluation.json", "data.json", "data.safetensors"):
        (folder / name).unlink()
    return folder


def read_page(path: Path, scripts: int = 0) -> Page:
    """A page with nothing fetched, nothing executed but its own scripts, and words for every picture."""
    page = Page(path.read_text(encoding="utf-8"))
    names = [tag for tag, _ in page.tags]
    assert not {"iframe", "object", "embed", "base"} & set(names)
    assert [attrs for tag, attrs in page.tags if tag == "link"] == [{"rel": "icon", "href": icon_url()}]
    assert names.count("script") == scripts
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    for target in page.attributes("href") + page.attributes("src"):
        inside = target.startswith("data:image/png;base64,") or target == icon_url()
        assert inside or target.removeprefix("#") in ids
    assert not any(key.startswith("on") for _, attrs in page.tags for key in attrs)
    style = "".join(page.attributes("style"))
    assert "url(http" not in style
    for reference in re.findall(r"url\(#([^)]*)\)", "".join(page.attributes("clip-path"))):
        assert reference in ids
    for tag, attrs in page.tags:
        if tag == "img":
            assert attrs["alt"]
        if tag == "svg":
            assert attrs["role"] == "img"
            assert all(key in ids for key in (attrs["aria-labelledby"] or "").split())
    assert names.count("svg") == names.count("desc") == names.count("figcaption")
    assert names.count("table") == names.count("caption")
    assert names.count("h1") == names.count("main") == 1
    return page


def test_the_page_of_one_run_shows_its_figures(make_run: MakeRun) -> None:
    folder = make_run("first", tune=10)
    before = {p.name for p in folder.iterdir()}
    write_for([folder], folder)
    assert {p.name for p in folder.iterdir()} == before | set(FILES)
    page = read_page(folder / "report.html")
    assert page.headings[1:] == ["All measures", "Training", "Clients", "Routing", "Data", "Settings"]
    assert "open" not in [key for tag, attrs in page.tags if tag == "details" for key in attrs]
    summary = json.loads((folder / "summary.json").read_text())
    for score in (summary["average_accuracy"], *summary["system_accuracy"].values()):
        assert f"{100 * score['mean']:.2f} ± 0.42" in page.cells
    evaluation = json.loads((folder / "evaluation.json").read_text())
    for client in evaluation["per_client"]:
        start = page.cells.index(client["name"])
        expected = [client["own"], client["vote"], client["head_density"], client["head_posterior"]]
        shown = page.cells[start + 1 : start + 9]
        assert shown[:2] == [str(client["train"]), str(client["test"])]
        assert {f"{100 * value:.2f}" for value in expected} <= set(shown)
    counts = np.array(evaluation["confusion"]["head_density"])
    assert any(f"head, density {np.trace(counts) / counts.sum():.1%}" in text for text in page.texts)
    for setting, value in (("method.weight", "0.4"), ("local_steps", "10"), ("seconds.train", "12.3457")):
        assert page.cells[page.cells.index(setting) + 1] == value
    assert "prefers-color-scheme:dark" in (folder / "report.html").read_text()


def test_every_figure_of_the_page_is_also_a_file_of_each_format(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [without_figures(run) for run in (make_run("first"), make_run("second", method="fedavg"))]
    write_report(report_table(runs), tmp_path / "report", figures=True)
    page = read_page(tmp_path / "report" / "report.html")
    names = {ids.split()[0].removesuffix("-title") for ids in page.attributes("aria-labelledby")}
    assert {"compare", "curves", "r1-accuracy", "r2-loss"} <= names
    files = {path.name: path for path in (tmp_path / "report" / "figures").iterdir()}
    assert set(files) == {f"{name}.{ending}" for name in names for ending in ("pdf", "png", "svg")}
    assert all(files[f"{name}.pdf"].read_bytes().startswith(b"%PDF") for name in names)
    assert ">average</text>" in files["r1-accuracy.svg"].read_text()
    with Image.open(files["compare.png"]) as picture:
        assert picture.convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)


def test_the_page_shows_metrics_and_the_confusion_of_classes(make_run: MakeRun, digits: Federation) -> None:
    folder = make_run("first", metrics=True)
    write_for([folder], folder)
    page = read_page(folder / "report.html")
    assert page.headings[1:] == ["All measures", "Training", "Clients", "Answers", "Routing", "Data", "Settings"]
    assert page.cells[page.cells.index("own: AUROC") + 1] == "98.77 [96.77, 99.77] (error at most 0.04)"
    assert any("Right answers: own 47.1%, system 47.1%." in text for text in page.texts)
    assert "System answers" in page.texts
    assert not [cell for cell in page.cells if cell.startswith("metrics.")], "not among the facts"


def test_the_page_shows_how_often_label_sets_hold_the_label(make_run: MakeRun) -> None:
    folder = make_run("first")
    summary = json.loads((folder / "summary.json").read_text())
    sets = {"trained": {"0.1": {"covered": 0.9049, "size": 1.234, "empty": 0.011, "asked": 1.34}}}
    (folder / "summary.json").write_text(json.dumps({**summary, "router": {"label_sets": sets}}))
    write_for([folder], folder)
    cells = read_page(folder / "report.html").cells
    assert cells[cells.index("90%") - 1 :][:6] == ["trained", "90%", "90.5%", "1.23", "1.34", "1.1%"]


def test_the_page_of_several_runs_compares_them(make_run: MakeRun, tmp_path: Path) -> None:
    others = [make_run("_base", method="fedavg", skill=0.7), make_run("live", finished=False)]
    runs = [make_run("first"), *map(without_figures, others)]
    write_for(runs, tmp_path / "deep" / "report")
    assert sorted(p.name for p in (tmp_path / "deep" / "report").iterdir()) == FILES
    page = read_page(tmp_path / "deep" / "report" / "report.html")
    assert [h for h in page.headings if h in ("first", "_base", "live")] == ["first", "_base", "live"]
    assert any("3 runs compared" in text for text in page.texts)
    assert "unfinished: round 30 of 60" in page.texts
    assert [text for text in page.texts if text.strip() == "_base (head, density)"]  # in a legend
    assert not any("over megabytes sent" in text for text in page.texts), "older runs do not say"
    counted = [without_figures(make_run(name, each=each)) for name, each in (("one", 1000), ("two", 2000))]
    write_for(counted, tmp_path / "counted")
    page = read_page(tmp_path / "counted" / "report.html")
    assert any(text.startswith("Average accuracy over megabytes sent") for text in page.texts)
    assert "MB in total" in page.texts


def test_the_page_of_seeds_shows_means_differences_and_the_first_run(
    make_seeds: Callable[..., list[Path]], tmp_path: Path
) -> None:
    folders = make_seeds("a", [0.6, 0.7, 0.8]) + make_seeds("b", [0.62, 0.71, 0.83], method="fedavg")
    write_for([tmp_path], tmp_path / "report")
    page = read_page(tmp_path / "report" / "report.html")
    assert any("2 groups of runs compared" in text for text in page.texts)
    assert page.headings[0].startswith("A query of unknown origin, mean of 3 seeds: ")
    assert [h for h in page.headings if h in ("a", "b")] == ["a", "b"]
    assert page.headings.count("Training") == 2  # of the first run of each group
    table = report_table(folders)
    for i in range(2):
        score = table.score(i, Measure("average"))
        assert str(score) in page.cells
        note = f"{score.spread} over 3 seeds"  # type: ignore[union-attr]
        assert note in page.texts
        assert any("seeds 0, 1, 2. Figures below the tiles are of seed-0 alone" in text for text in page.texts)
    start = page.cells.index("a less b")
    assert page.cells[start + 1 : start + 4] == table.difference_rows()[1][0][1:]
    write_for([*map(without_figures, folders[:3])], tmp_path / "alone")
    assert read_page(tmp_path / "alone" / "report.html").headings[1:3] == ["All measures", "Training"]


def test_a_comparison_lists_only_the_settings_that_differ(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [without_figures(run) for run in (make_run("a"), make_run("b", method="fedavg", rounds=40))]
    write_for(runs, tmp_path / "r")
    page = read_page(tmp_path / "r" / "report.html")
    assert page.headings[1:3] == ["All measures", "What differs"]
    start = page.cells.index("Setting")
    assert page.cells[start : start + 9] == [
        *("Setting", "a", "b"), *("method.name", "feddrm", "fedavg"), *("rounds", "60", "40"),
    ]  # fmt: skip
    assert page.cells[start + 9] not in ("local_steps", "lr")  # what is the same is not there


def test_names_from_files_are_escaped(make_run: MakeRun) -> None:
    rng = np.random.default_rng(0)
    bad = "<script>alert(1)<&'\">"
    clients = {n: (rng.normal(size=(20, 3)), np.array([bad, "$x$"] * 10)) for n in ("<img src=x>", '病院 id="a" $y$')}
    folder = make_run("a<b>", method="<script>", federation=Federation.from_arrays(clients))
    evaluation = json.loads((folder / "evaluation.json").read_text())
    evaluation["confusion"]["<b onclick=x>"] = [[1, 2], [3, 4]]
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    write_for([folder], folder)
    page = read_page(folder / "report.html")
    assert not {"img", "b"} & {tag for tag, _ in page.tags}
    shown = "".join(page.texts)
    for name in ("a<b>", bad, *clients, "<b onclick=x>"):
        assert name in shown


def test_markup_in_client_and_class_names_stays_text(make_run: MakeRun, tmp_path: Path) -> None:
    """A folder of samples cannot have such a client name, but a file of a run can."""
    client, label = "<b>x</b>", "dog\" onload=\"alert(1)' a='"
    folders = [make_run("first"), make_run("second")]
    for folder in folders:
        for name in ("evaluation.json", "data.json"):
            content = json.loads((folder / name).read_text())
            content["per_client" if name == "evaluation.json" else "clients"][0]["name"] = client
            if name == "data.json":
                content["classes"] = [label] * len(content["classes"])
            (folder / name).write_text(json.dumps(content))
    write_for(folders, tmp_path / "report")
    page = read_page(tmp_path / "report" / "report.html")
    assert "b" not in {tag for tag, _ in page.tags}
    assert not any("alert" in key or "alert" in (value or "") for _, attrs in page.tags for key, value in attrs.items())
    assert page.cells.count(client) == 2
    assert client in page.texts  # below the bars
    assert any(f"{client}: " in text and f"most of class {label}" in text for text in page.texts)


def test_a_bare_unfinished_run_is_reported_and_labelled(make_run: MakeRun, tmp_path: Path) -> None:
    folder = without_figures(make_run("live", finished=False))
    (folder / "metrics.jsonl").write_text('{"round": 3, "average_accuracy": 0.5, "loss": NaN}\n{"rou')
    write_for([folder], folder)
    page = read_page(folder / "report.html")
    assert page.headings == [
        "A query, after round 3 of 60: 50 % answered rightly at its own client.",
        *("All measures", "Training", "Settings"),
    ]
    assert "unfinished: round 3 of 60" in page.texts
    assert "50.00" in page.cells
    write_for([folder], tmp_path / "again")
    for name in FILES:
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_many_clients_and_classes(make_run: MakeRun) -> None:
    rng = np.random.default_rng(0)
    clients = {f"site-{i}": (rng.normal(size=(60, 3)), np.arange(60) % 25) for i in range(41)}
    folder = make_run("many", federation=Federation.from_arrays(clients))
    write_for([folder], folder)
    page = read_page(folder / "report.html", scripts=1)
    assert page.cells.count("site-7") == 1 + sum(
        "site-7" in [client.name for client in some] for some in edges(RunRecord.read(folder).clients)
    )
    assert "All 41 clients" in page.texts
    assert "The 10 best clients by own model." in page.texts
    assert "r1-all-clients" in page.attributes("id")
    assert any(text.startswith("Groups of clients that the router confuses") for text in page.texts)


def test_a_run_without_figures_of_answers_says_so(make_run: MakeRun) -> None:
    folder = make_run("bare", finished=False)
    (folder / "metrics.jsonl").write_text('{"round": 3, "loss": 1.5}\n')
    write_for([folder], folder)
    page = read_page(folder / "report.html")
    assert page.headings[0] == "bare"
    assert "There is no figure of answers in this run." in page.texts


def test_a_failure_leaves_no_files_behind(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feddrm.report.report_page.report_page", lambda table: "page")  # drawn in other tests
    good, bad = make_run("good"), make_run("bad")
    (bad / "summary.json").write_text("{")
    out = tmp_path / "out"
    with pytest.raises(FeddrmError, match=r"summary.json is broken"):
        write_for([good, bad], out)
    assert not out.exists()
    (out / "table.tex").mkdir(parents=True)
    with pytest.raises(FeddrmError, match=r"cannot write .*table.tex \(a folder has this name\)"):
        write_for([good], out)
    assert [p.name for p in out.iterdir()] == ["table.tex"]
    with pytest.raises(SettingError, match=r"is a file: name a folder"):
        write_for([good], good / "config.yaml")
    with pytest.raises(SettingError, match=r"page.html': name a folder, as '.*page', for report.html, table.csv"):
        write_for([good], tmp_path / "page.html")
    with pytest.raises(FeddrmError, match="cannot write"):
        write_for([good], good / "config.yaml" / "deeper")
    with pytest.raises(SettingError, match="name at least one run folder"):
        report_table([])

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    before = sorted(good.iterdir())
    with pytest.raises(FeddrmError, match=r"cannot write .*report.html \(No space left on device\): free the disk"):
        write_for([good], good)
    assert sorted(good.iterdir()) == before
