"""The commands ``feddrm drm``: density ratio models on plain samples, and the paper's two theoretical experiments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddrm.cli.output import JsonFlag, print_json, print_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from feddrm.drm import DensityRatioFit

app = typer.Typer(
    help="Fit density ratio models to plain samples; check the theory by experiment.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Picture = Annotated[Path | None, typer.Option(help="Also draw a figure (.png, .svg or .pdf).")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the simulated data.")]
QUARTILES = (0.25, 0.5, 0.75)


@app.command()
def fit(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="One .csv file of numbers per population.")],
    basis: Annotated[str, typer.Option(help="normal (x, x^2), gamma (x, log x) or identity (x).")] = "normal",
    ridge: Annotated[
        float, typer.Option(help="Penalty on large tilts; needed for populations that the basis separates.")
    ] = 0,
    out: Picture = None,
    json: JsonFlag = False,
) -> None:
    """Fit the density ratios of several samples against the first, and test whether all are equal.

    Example: feddrm drm fit a.csv b.csv c.csv --basis normal --out density.png
    """
    from feddrm.drm import DensityRatioModel
    from feddrm.drm.density_figures import density_figure
    from feddrm.drm.sample_files import read_samples

    model = DensityRatioModel(basis, ridge=ridge)
    _check(out)
    fitted = model.fit(*read_samples(files))
    facts = fit_facts(fitted)
    if out is not None:
        _save(density_figure(fitted), out)
    if json:
        print_json(facts)
        return
    _print_fit(facts)
    _echo_written(out)


def fit_facts(fitted: DensityRatioFit) -> dict[str, Any]:
    """All results of a fit, as plain values."""
    from feddrm.drm import inference

    tilts, mean = inference.tilts(fitted), inference.mean(fitted)
    facts: dict[str, Any] = {
        "basis": fitted.model.basis,
        "ridge": fitted.model.ridge,
        "reference": fitted.names[0],
        "terms": ["1", *fitted.terms],
        "log_likelihood": fitted.log_likelihood,
        "profile_log_likelihood": fitted.profile_log_likelihood,
        "homogeneity": None,
        "populations": [
            {
                "name": name,
                "n": int(fitted.counts[i]),
                "tilt": tilts.value[i].tolist(),
                "standard_error": tilts.error[i].tolist(),
                "mean": dict(zip(fitted.columns, mean.value[i].tolist(), strict=True)),
                "mean_standard_error": dict(zip(fitted.columns, mean.error[i].tolist(), strict=True)),
            }
            for i, name in enumerate(fitted.names)
        ],
    }
    if fitted.model.ridge == 0:
        test = inference.homogeneity(fitted)
        facts["homogeneity"] = {"statistic": test.statistic, "degrees": test.degrees, "p_value": test.p_value}
    if len(fitted.columns) == 1:
        values = inference.quantile(fitted, QUARTILES)
        low, high = inference.quantile_interval(fitted, QUARTILES)
        for i, population in enumerate(facts["populations"]):
            population["quantiles"] = [
                {"level": level, "value": float(values[i, j]), "low": float(low[i, j]), "high": float(high[i, j])}
                for j, level in enumerate(QUARTILES)
            ]
    return facts


def _print_fit(facts: dict[str, Any]) -> None:
    rows = [
        [p["name"], p["n"], term, f"{value:.4f}", f"{error:.4f}"]
        for p in facts["populations"][1:]
        for term, value, error in zip(facts["terms"], p["tilt"], p["standard_error"], strict=True)
    ]
    title = f"log density ratio against '{facts['reference']}' ({facts['populations'][0]['n']} observations)"
    print_table(["population", "n", "term", "tilt", "std. error"], rows, title=title)
    if all("quantiles" in p for p in facts["populations"]):
        spelled = [
            [p["name"], *(f"{q['value']:.4g} ({q['low']:.4g} to {q['high']:.4g})" for q in p["quantiles"])]
            for p in facts["populations"]
        ]
        title = "quartiles from the pooled sample, with 95 % intervals"
        print_table(["population", *(f"{100 * level:g} %" for level in QUARTILES)], spelled, title=title)
    if (test := facts["homogeneity"]) is None:
        typer.echo("all alike? not tested: the fit has a ridge")
    else:
        typer.echo(
            f"all alike? chi-square {test['statistic']:.2f} on {test['degrees']} degrees of freedom, "
            f"p = {test['p_value']:.3g}"
        )


@app.command()
def example(
    folder: Annotated[Path, typer.Argument(help="Folder for a.csv, b.csv and c.csv.")] = Path(),
    seed: Seed = 0,
) -> None:
    """Write three small normal samples to try the fit on; b has a larger variance than a, c another mean.

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
    """Gradient drift of the client head and the class head: ten classes, three clients, six settings.

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
    """The effect of lambda, the weight of the class loss, compared with the paper's theorem and lemma.

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


def _check(out: Path | None) -> None:
    """Refuse a path that cannot be written, before any work is done."""
    if out is not None:
        from feddrm.report.figure_files import check_figure_path

        check_figure_path(out)


def _save(figure: Figure, out: Path) -> None:
    from feddrm.report.figure_files import save_figure

    save_figure(figure, out)


def _echo_written(out: Path | None) -> None:
    if out is not None:
        typer.echo(f"wrote {out}")
