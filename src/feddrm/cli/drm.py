"""The commands ``feddrm drm``: density ratio models on plain samples, and the paper's two theoretical experiments."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddrm.cli.output import JsonFlag, print_json, print_table
from feddrm.progress import current_step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from feddrm.drm import Analysis

app = typer.Typer(
    help="Fit density ratio models to samples; check the theory.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Picture = Annotated[Path | None, typer.Option(help="Also draw a figure (.png, .svg or .pdf).")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the simulated data.")]


@app.command()
def fit(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="One .csv file of numbers per population; with --group, one table."),
    ],
    group: Annotated[str | None, typer.Option(help="Column of a single long table that names the population.")] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="With --group: a column of numbers (default: all others); repeatable.")
    ] = None,
    basis: Annotated[
        str,
        typer.Option(
            help="normal (x, x^2), gamma (x, log x), lognormal (log x and its square), beta (log x, log(1 - x)), "
            "identity (x), polynomial(3), a formula '~ log(x) + x', or auto: the best by cross-validated likelihood."
        ),
    ] = "normal",
    ridge: Annotated[
        float, typer.Option(help="Penalty on large tilts; needed for populations that the basis separates.")
    ] = 0,
    quantiles: Annotated[str, typer.Option(help="Levels of quantiles, separated by commas.")] = "0.25,0.5,0.75",
    confidence: Annotated[float, typer.Option(help="Confidence of the intervals.")] = 0.95,
    correction: Annotated[
        str, typer.Option(help="Of tests, for small samples: none, bartlett, bootstrap, or auto (bartlett if small).")
    ] = "auto",
    replicates: Annotated[int, typer.Option(help="Bootstrap samples of that correction, at least 20.")] = 200,
    bootstrap: Annotated[
        int, typer.Option(help="Bootstrap samples for the intervals of quantiles and means; 0: none are drawn.")
    ] = 0,
    zeros: Annotated[
        bool, typer.Option("--zeros", help="Model the share of zeros apart from the positive observations.")
    ] = False,
    absent: Annotated[
        list[str] | None, typer.Option(help="Also test whether this term, such as x^2, is needed; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of bootstrap samples.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Also write a page of everything (.html), or a figure (.png, .svg or .pdf).")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Compare several samples by density ratios against the first. It adds tests, quantiles, means, goodness of fit.

    Example: feddrm drm fit a.csv b.csv c.csv --basis auto --out analysis.html
    """
    from feddrm.drm import AnalysisSettings, BasisWarning, DensityRatioModel, analyse
    from feddrm.drm.inference import Testing
    from feddrm.errors import FeddrmError, SettingError

    testing = Testing(correction=correction, replicates=replicates, seed=seed)
    levels = _numbers("--quantiles", quantiles)
    settings = AnalysisSettings(levels, confidence, testing, bootstrap, zeros, tuple(absent or ()))
    DensityRatioModel(basis, ridge=ridge)  # refuses what cannot be, before any file is read
    _check(out, page=True)
    samples, columns = _samples(files, group, column or [])
    try:
        with current_step() as show, warnings.catch_warnings():
            warnings.simplefilter("ignore", BasisWarning)  # printed below, in one line
            show("fit and goodness of fit")
            analysis = analyse(samples, basis, settings, columns, ridge)
            show(f"tests of {len(analysis.fit.names)} populations")
            show(f"{len(analysis.tests)} tests are done: estimates and intervals")
            facts = analysis.facts()
    except FeddrmError as error:
        if group is None or isinstance(error, SettingError):
            raise  # a population has the name of its file
        raise FeddrmError(f"{files[0]}: {error}") from error
    for warning in facts["warnings"]:
        typer.echo(f"feddrm: warning: {warning}", err=True)
    if out is not None:
        _write_analysis(analysis, out)
    if json:
        print_json(facts)
        return
    _print_fit(facts)
    _echo_written(out)


def _samples(files: list[Path], group: str | None, columns: list[str]) -> tuple[Any, Any]:
    from feddrm.drm.sample_files import read_long_table, read_samples
    from feddrm.errors import SettingError

    if group is None:
        if columns:
            raise SettingError("--column names a column of a long table: give --group, too")
        return read_samples(files)
    if len(files) != 1:
        raise SettingError(f"--group divides one table, but there are {len(files)} files: give one")
    return read_long_table(files[0], group, columns)


def _numbers(option: str, text: str) -> tuple[float, ...]:
    from feddrm.errors import SettingError
    from feddrm.io.text import parse_float

    values = [parse_float(word) for word in text.split(",")]
    if None in values:
        raise SettingError(f"{option} '{text}': give numbers separated by commas, such as 0.1,0.5,0.9")
    return tuple(value for value in values if value is not None)


def _write_analysis(analysis: Analysis, out: Path) -> None:
    from feddrm.comparison import analysis_page
    from feddrm.drm.density_figures import density_figure
    from feddrm.io.atomic import write_together

    if out.suffix.lower() == ".html":
        write_together({out: analysis_page(analysis).encode()})
    else:
        _save(density_figure(analysis.fit, analysis.settings.confidence), out)


def _print_fit(facts: dict[str, Any]) -> None:
    from feddrm.comparison.analysis_page import tables

    for table in tables(facts):
        header = [column.header.text for column in table.columns]
        print_table(header, [[cell.text for cell in row.cells] for row in table.rows], title=table.caption)
    if (test := facts["homogeneity"]) is None:
        typer.echo("all alike? not tested: the fit has a ridge")
        return
    corrected = "" if test["correction"] == "none" else f" ({test['correction']} correction)"
    typer.echo(
        f"all alike? chi-square {test['statistic']:.2f} on {test['degrees']} degrees of freedom, "
        f"p = {test['p_value']:.3g}{corrected}"
    )
    good = facts["goodness_of_fit"]
    verdict = "not known: too few replicates have a fit" if good is None else f"p = {good['p_value']:.3g}"
    typer.echo(f"does the basis {facts['basis']} fit? {verdict}")


@app.command()
def example(
    folder: Annotated[Path, typer.Argument(help="Folder for a.csv, b.csv and c.csv.")] = Path(),
    seed: Seed = 1,
) -> None:
    """Write three small normal samples to try the fit on. Sample b has a larger variance than a, c another mean.

    Example: feddrm drm example
    """
    import numpy as np

    from feddrm.errors import FeddrmError
    from feddrm.io.atomic import write_together

    rng = np.random.default_rng(seed)
    samples = {"a": rng.normal(0, 1, 200), "b": rng.normal(0, 1.5, 100), "c": rng.normal(0.7, 1, 300)}
    files = {folder / f"{name}.csv": "x\n" + "".join(f"{v:.6f}\n" for v in x) for name, x in samples.items()}
    if taken := [str(path) for path in files if path.exists()]:
        raise FeddrmError(f"{taken[0]} exists and is not overwritten: move it, or name another folder")
    write_together({path: text.encode() for path, text in files.items()})
    typer.echo(f"wrote {', '.join(str(path) for path in files)}")


@app.command()
def drift(
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of FedAvg.")] = 100,
    seed: Seed = 0,
    out: Picture = None,
    json: JsonFlag = False,
) -> None:
    """Measure the gradient drift of client head and class head. There are ten classes, three clients, six settings.

    Example: feddrm drm drift --out drift.png
    """
    from feddrm.paper.experiments.drift import drift_experiment
    from feddrm.paper.experiments.experiment_figures import drift_figure

    _check(out)
    drifts = drift_experiment(rounds, seed)
    if out is not None:
        _save(drift_figure(drifts), out)
    facts = [d.facts() for d in drifts]
    if json:
        print_json(facts)
        return
    kinds = ("squared_client", "squared_class", "relative_client", "relative_class")
    rows = [[f["labels"], f["embedding"], *(f"{f[kind]['mean']:.3g}" for kind in kinds)] for f in facts]
    header = ["labels", "embedding", "G^2 client", "G^2 class", "relative client", "relative class"]
    print_table(header, rows, title=f"gradient drift, mean over {rounds} rounds")
    _echo_written(out)


@app.command()
def tradeoff(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of FedAvg.")] = 150,
    seed: Seed = 0,
    out: Picture = None,
    json: JsonFlag = False,
) -> None:
    """Measure the effect of lambda, the weight of the class loss. It is compared with the paper's theorem and lemma.

    Example: feddrm drm tradeoff --out tradeoff.png
    """
    from feddrm.paper.experiments.experiment_figures import tradeoff_figure
    from feddrm.paper.experiments.tradeoff import tradeoff_experiment

    _check(out)
    result = tradeoff_experiment(rounds=rounds, seed=seed)
    if out is not None:
        _save(tradeoff_figure(result), out)
    if json:
        print_json(result.facts())
        return
    plain, penalised = result.error.values()
    rows = [
        [float(lam), *(f"{curve[i]:.3g}" for curve in (result.floor, result.bound))]
        + [f"{curve[i]:.3g}" for errors in (plain, penalised) for curve in (errors["client"], errors["class"])]
        for i, lam in enumerate(result.lambdas)
    ]
    ridge = result.settings["ridge"]
    header = ["lambda", "FedAvg's floor", "bound", "client, ridge 0", "class, ridge 0"]
    title = "squared distances: FedAvg from the minimiser, and the minimiser from the truth"
    print_table([*header, f"client, ridge {ridge:g}", f"class, ridge {ridge:g}"], rows, title=title)
    _echo_written(out)


def _check(out: Path | None, page: bool = False) -> None:
    """Refuse a path that cannot be written, before any work is done."""
    if out is not None:
        from feddrm.report.figure_files import check_figure_path

        # A page lies where a figure of the same name could.
        check_figure_path(out.with_suffix(".svg") if page and out.suffix.lower() == ".html" else out)


def _save(figure: Figure, out: Path) -> None:
    from feddrm.report.figure_files import save_figure

    save_figure(figure, out)


def _echo_written(out: Path | None) -> None:
    if out is not None:
        typer.echo(f"wrote {out}")
