from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import typer
from matplotlib.patches import Rectangle
from typer.testing import CliRunner

from feddrm.cli.report import report
from feddrm.data import Federation
from feddrm.errors import FeddrmError, SettingError
from feddrm.report import run_figures
from feddrm.report.accuracy_measures import RULES, Measure
from feddrm.report.report_files import build_report
from feddrm.report.run_record import ClientResult, RunRecord
from feddrm.report.run_table import report_table

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
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings[-1] += data
        if "td" in self.open or "th" in self.open:
            self.cells[-1] += data

    def attributes(self, name: str) -> list[str]:
        return [value for _, attrs in self.tags if (value := attrs.get(name)) is not None]


def read_page(path: Path) -> Page:
    """A page with nothing fetched, nothing executed, and words for every picture."""
    page = Page(path.read_text(encoding="utf-8"))
    names = [tag for tag, _ in page.tags]
    assert not {"script", "link", "iframe", "object", "embed", "base"} & set(names)
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    for target in page.attributes("href") + page.attributes("src"):
        assert target.startswith("data:image/png;base64,") or target.removeprefix("#") in ids
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


def test_one_run_is_reported_into_its_folder(make_run: MakeRun) -> None:
    folder = make_run("first", tune=10)
    before = {p.name for p in folder.iterdir()}
    build_report([folder], folder)
    assert {p.name for p in folder.iterdir()} == before | set(FILES)
    page = read_page(folder / "report.html")
    assert page.headings == ["first", "Results", "Training", "Clients", "Routing", "Data", "Settings"]
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


def test_several_runs_are_compared(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("first"), make_run("_base", method="fedavg", skill=0.7), make_run("live", finished=False)]
    for run in runs[1:]:
        for name in ("evaluation.json", "data.json", "data.safetensors"):
            (run / name).unlink()
    build_report(runs, tmp_path / "deep" / "report")
    assert sorted(p.name for p in (tmp_path / "deep" / "report").iterdir()) == FILES
    page = read_page(tmp_path / "deep" / "report" / "report.html")
    assert [h for h in page.headings if h in ("first", "_base", "live")] == ["first", "_base", "live"]
    assert page.headings[0] == "3 runs compared"
    assert "unfinished: round 30 of 60" in page.texts
    assert [text for text in page.texts if text.strip() == "_base (head, density)"]  # in a legend


def test_a_comparison_says_in_what_the_runs_differ(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("a"), make_run("b", method="fedavg", rounds=40)]
    build_report(runs, tmp_path / "r")
    page = read_page(tmp_path / "r" / "report.html")
    assert page.headings[:3] == ["2 runs compared", "Results", "What differs"]
    start = page.cells.index("Setting")
    assert page.cells[start : start + 9] == [
        *("Setting", "a", "b"), *("method.name", "feddrm", "fedavg"), *("rounds", "60", "40"),
    ]  # fmt: skip
    assert page.cells[start + 9] not in ("local_steps", "lr")  # what is the same is not there


def test_a_comparison_shows_rules_fixed_beforehand(make_run: MakeRun) -> None:
    """With a router there are a dozen rules: as many marks on one line would hide each other."""
    folder = make_run("a")
    summary = json.loads((folder / "summary.json").read_text())
    summary["system_accuracy"] |= {
        rule: {"mean": 0.5 + i / 100, "std": None} for i, rule in enumerate([*RULES, "my_rule"])
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    records = [RunRecord.read(folder), RunRecord.read(make_run("b", method="fedavg"))]
    figure = run_figures.comparison_figure(("a", "b"), records)
    labels = [str(line.get_label()) for line in figure.axes[0].lines]
    rules = ("vote", "head, density", "exact, density", "stacked", "global probe", "my rule")
    assert labels == ["average", *(f"system ({rule})" for rule in rules), "global", "oracle"]
    looks = [(line.get_color(), line.get_marker()) for line in figure.axes[0].lines]
    assert len(set(looks)) == len(looks)


def test_legends_fit_their_figures(make_run: MakeRun) -> None:
    long = "a-rule-of-somebody-s-own-with-a-very-long-name"
    folder = make_run("a")
    summary = json.loads((folder / "summary.json").read_text())
    summary["system_accuracy"] |= {f"{long}-{i}": {"mean": 0.5, "std": None} for i in range(5)}
    (folder / "summary.json").write_text(json.dumps(summary))
    record = RunRecord.read(folder)
    for figure in (
        run_figures.comparison_figure(("a",), [record]),
        run_figures.comparison_curves([long * 2] * 5, [record] * 5),
        run_figures.accuracy_figure(record),
    ):
        figure.draw_without_rendering()
        (legend,) = figure.legends
        assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_runs_are_told_apart_without_colour(make_run: MakeRun) -> None:
    record = RunRecord.read(make_run("a"))
    lines = run_figures.comparison_curves(list("abcd"), [record] * 4).axes[0].lines
    assert len({line.get_linestyle() for line in lines}) == 4


def test_long_names_leave_the_diagram_its_height(make_run: MakeRun) -> None:
    def height(name: str) -> float:
        clients = [ClientResult(f"{name}{i}", 1, 1, {"own": 0.5}) for i in range(32)]
        figure = run_figures.client_figure(clients)
        figure.draw_without_rendering()
        return figure.axes[0].get_window_extent().height

    assert height("x" * 40) > 0.8 * height("x")


def test_names_from_files_are_escaped(make_run: MakeRun) -> None:
    rng = np.random.default_rng(0)
    bad = "<script>alert(1)<&'\">"
    clients = {n: (rng.normal(size=(20, 3)), np.array([bad, "$x$"] * 10)) for n in ("<img src=x>", '病院 id="a" $y$')}
    folder = make_run("a<b>", method="<script>", federation=Federation.from_arrays(clients))
    evaluation = json.loads((folder / "evaluation.json").read_text())
    evaluation["confusion"]["<b onclick=x>"] = [[1, 2], [3, 4]]
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    build_report([folder], folder)
    page = read_page(folder / "report.html")
    assert not {"img", "b"} & {tag for tag, _ in page.tags}
    assert page.headings[0] == "a<b>"
    shown = "".join(page.texts)
    for name in (bad, *clients, "<b onclick=x>"):
        assert name in shown


def test_a_bare_unfinished_run_is_reported_and_labelled(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run("live", finished=False)
    for name in ("evaluation.json", "data.json", "data.safetensors"):
        (folder / name).unlink()
    (folder / "metrics.jsonl").write_text('{"round": 3, "average_accuracy": 0.5, "loss": NaN}\n{"rou')
    build_report([folder], folder)
    page = read_page(folder / "report.html")
    assert page.headings == ["live", "Results", "Training", "Settings"]
    assert "unfinished: round 3 of 60" in page.texts
    assert "50.00" in page.cells
    build_report([folder], tmp_path / "again")
    for name in FILES:
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_many_clients_and_classes(make_run: MakeRun) -> None:
    rng = np.random.default_rng(0)
    clients = {f"site-{i}": (rng.normal(size=(60, 3)), np.arange(60) % 25) for i in range(41)}
    folder = make_run("many", federation=Federation.from_arrays(clients))
    build_report([folder], folder)
    read_page(folder / "report.html")


def test_figures_show_the_numbers(make_run: MakeRun) -> None:
    record = RunRecord.read(make_run("first"))
    lines = {line.get_label(): line for line in run_figures.accuracy_figure(record).axes[0].lines}
    rounds, values = record.curve(Measure("system", "vote"))
    assert np.asarray(lines["system (vote)"].get_xdata()).tolist() == rounds
    assert np.array_equal(np.asarray(lines["system (vote)"].get_ydata()), 100 * np.array(values))
    assert set(lines) == {
        *("average", "oracle", "global", "system (vote)", "system (head, density)", "system (head, posterior)")
    }
    looks = [(line.get_color(), line.get_linestyle()) for line in lines.values()]
    assert len({look[0] for look in looks}) == len(looks)
    (axes,) = run_figures.client_figure(record.clients).axes
    heights = [bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle)]
    assert heights == [100 * (c.values["own"] or 0) for c in record.clients]
    assert record.confusion is not None
    panels = run_figures.confusion_figure([c.name for c in record.clients], record.confusion).axes
    assert [axes.get_title() for axes in panels] == ["head, density", "head, posterior"]
    shown = np.asarray(panels[0].images[0].get_array())
    np.testing.assert_allclose(shown.sum(1), 100)
    odd = run_figures.confusion_figure("ab", {rule: np.eye(2, dtype=np.int64) for rule in ("a", "b", "c")})
    assert len(odd.axes) == 3


def test_nothing_is_left_behind_on_failure(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feddrm.report.report_files.report_page", lambda table: "page")  # drawn in other tests
    good, bad = make_run("good"), make_run("bad")
    (bad / "summary.json").write_text("{")
    out = tmp_path / "out"
    with pytest.raises(FeddrmError, match=r"summary.json is broken"):
        build_report([good, bad], out)
    assert not out.exists()
    (out / "table.tex").mkdir(parents=True)
    with pytest.raises(FeddrmError, match=r"cannot write .*table.tex \(a folder has this name\)"):
        build_report([good], out)
    assert [p.name for p in out.iterdir()] == ["table.tex"]
    with pytest.raises(SettingError, match=r"is a file: name a folder"):
        build_report([good], good / "config.yaml")
    with pytest.raises(FeddrmError, match="cannot write"):
        build_report([good], good / "config.yaml" / "deeper")
    with pytest.raises(SettingError, match="name at least one run folder"):
        report_table([])

    def full(self: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    before = sorted(good.iterdir())
    with pytest.raises(FeddrmError, match=r"cannot write .*report.html \(No space left on device\): free the disk"):
        build_report([good], good)
    assert sorted(good.iterdir()) == before


def test_the_command(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()
    app.command()(report)
    runner = CliRunner()
    monkeypatch.setattr("feddrm.report.report_files.report_page", lambda table: "page")  # drawn in other tests
    first, second = make_run("first"), make_run("second", method="fedavg")
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["first"])
    assert result.exit_code == 0, result.output
    assert "accuracy in percent" in result.output
    assert f"wrote {Path('first') / 'report.html'}" in result.output
    assert (first / "report.html").read_text() == "page"
    result = runner.invoke(app, ["first", "second", "--json"])
    assert [row["method"] for row in json.loads(result.output)] == ["feddrm", "fedavg"]
    assert sorted(p.name for p in (tmp_path / "report").iterdir()) == FILES
    result = runner.invoke(app, ["second", "--out", "elsewhere"])
    assert sorted(p.name for p in (tmp_path / "elsewhere").iterdir()) == FILES
    assert not (second / "report.html").exists()
    assert runner.invoke(app, []).exit_code == 2
    help_text = runner.invoke(app, ["--help"]).output
    assert "Example: feddrm report runs/first" in help_text
