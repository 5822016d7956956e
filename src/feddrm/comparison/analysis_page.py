"""The page of an analysis of several samples: tests, estimates with intervals, and figures in one HTML file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from feddrm._version import __version__
from feddrm.drm import Analysis, DensityRatioFit
from feddrm.drm.density_figures import density_figure, distribution_figure, quantile_figure
from feddrm.report.html_templates import TEMPLATES
from feddrm.report.svg import inline_svg
from feddrm.report.tables import DASH, Table


def analysis_page(analysis: Analysis) -> str:
    """One HTML file with its figures inside."""
    facts = analysis.facts()
    fit = analysis.fit
    sizes = ", ".join(f"{p['name']} ({p['n']})" for p in facts["populations"])
    lead = (
        f"Density ratio model with basis {facts['basis']} ({', '.join(fit.terms)}), fitted by empirical likelihood. "
        f"Populations: {sizes}. Tilts are against {facts['reference']}."
    )
    template = TEMPLATES.get_template("analysis.html.j2")
    return template.render(
        title=f"Comparison of {', '.join(fit.names)}",
        lead=lead,
        warnings=facts["warnings"],
        tables=tables(facts),
        figures=_figures(analysis),
        summary=analysis.summary(),
        version=__version__,
    )


def tables(facts: dict[str, Any]) -> list[Table]:
    """All results as tables, for the page and for a terminal."""
    percent = f"{100 * facts['confidence']:g} %"
    people = facts["populations"]
    names = [p["name"] for p in people]
    out = [_tilts(facts)]
    if facts["tests"]:
        out.append(_tests(facts["tests"]))
    if "zeros" in people[0]:
        shares = {p["name"]: p["zeros"] for p in people}
        rows = [[n, z["count"], _spelled(z["share"], z["low"], z["high"])] for n, z in shares.items()]
        out.append(Table.of(["population", "zeros", f"share ({percent} interval)"], rows, "Zeros"))
    if "quantiles" in people[0]:
        levels = [f"{100 * q['level']:g} %" for q in people[0]["quantiles"]]
        rows = [[p["name"], *(_spelled(q["value"], q["low"], q["high"]) for q in p["quantiles"])] for p in people]
        out.append(Table.of(["population", *levels], rows, f"Quantiles ({percent} intervals)"))
        if "quantile_differences" in facts:
            rows = _matrix(names, facts["quantile_differences"])[1:]
            title = f"Quantiles less those of {names[0]} ({percent} intervals)"
            out.append(Table.of(["population", *levels], rows, title))
    columns = list(people[0]["mean"])
    rows = [[p["name"], *(_spelled(p["mean"][c], *p["mean_interval"][c]) for c in columns)] for p in people]
    out.append(Table.of(["population", *columns], rows, f"Means ({percent} intervals)"))
    out.append(_mean_differences(facts["mean_differences"], percent))
    if "dominance" in facts:
        rows = _matrix(names, facts["dominance"])
        for i, row in enumerate(rows):
            row[1 + i] = DASH
        title = f"Probability that the row's population is below the column's ({percent} intervals)"
        out.append(Table.of(["population", *names], rows, title))
    if facts["basis_scores"]:
        ranked = sorted(facts["basis_scores"].items(), key=lambda item: -item[1])
        rows = [[name, f"{score:.5f}"] for name, score in ranked]
        out.append(Table.of(["basis", "held-out log likelihood per observation"], rows, "Choice of the basis"))
    return out


def _mean_differences(differences: list[dict[str, Any]], percent: str) -> Table:
    """The model's intervals beside Welch's. The ratio of their lengths says what the model gains."""
    several = len({d["column"] for d in differences}) > 1
    rows = [
        [
            f"{d['population']} less {d['less']}",
            *([d["column"]] if several else []),
            *(_spelled(by["value"], by["low"], by["high"]) for by in (d, d["welch"])),
            _relative_length(d),
        ]
        for d in differences
    ]
    header = ["difference", *(["column"] if several else []), "by the model", "by Welch", "length against Welch's"]
    return Table.of(header, rows, f"Differences of means ({percent} intervals; Welch's: by the two samples alone)")


def _relative_length(difference: dict[str, Any]) -> str:
    own, welch = (by["high"] - by["low"] for by in (difference, difference["welch"]))
    return f"{100 * own / welch:.0f} %" if welch > 0 else DASH


def _tilts(facts: dict[str, Any]) -> Table:
    rows = [
        [p["name"], p["n"], term, f"{value:.4g}", f"{error:.3g}"]
        for p in facts["populations"][1:]
        for term, value, error in zip(facts["terms"], p["tilt"], p["standard_error"], strict=True)
    ]
    reference = facts["populations"][0]
    title = f"log density ratio against '{reference['name']}' (n = {reference['n']})"
    return Table.of(["population", "n", "term", "tilt", "std. error"], rows, title)


def _tests(tests: list[dict[str, Any]]) -> Table:
    rows = [
        [
            test["hypothesis"],
            f"{test['statistic']:.3f}",
            test["degrees"],
            f"{test['p_value']:.3g}",
            f"{test['holm_p_value']:.3g}" if "holm_p_value" in test else DASH,
            test["correction"],
        ]
        for test in tests
    ]
    return Table.of(["hypothesis", "statistic", "degrees", "p", "p by Holm", "correction"], rows, "Tests")


def _matrix(names: list[str], estimate: dict[str, Any]) -> list[list[str]]:
    cells = zip(estimate["value"], estimate["low"], estimate["high"], strict=True)
    return [
        [name, *(_spelled(*cell) for cell in zip(*row, strict=True))] for name, row in zip(names, cells, strict=True)
    ]


def _spelled(value: float, low: float | None, high: float | None) -> str:
    limits = "no interval" if low is None or high is None else f"{low:.4g} to {high:.4g}"
    return f"{value:.4g} ({limits})"


def _figures(analysis: Analysis) -> list[dict[str, Any]]:
    fit, confidence = analysis.fit, analysis.settings.confidence
    kinds: list[tuple[str, Callable[[DensityRatioFit], Figure], str]] = [
        (
            "density",
            partial(density_figure, confidence=confidence),
            f"Densities: histogram of each sample, and fitted to all with pointwise {100 * confidence:g} % bands.",
        )
    ]
    if analysis.single:
        caption = (
            f"Distribution functions: of each sample, and fitted to all with pointwise {100 * confidence:g} % bands."
        )
        kinds.append(("distribution", partial(distribution_figure, confidence=confidence), caption))
        kinds.append(("quantiles", quantile_figure, "Fitted quantiles against those of each sample (QQ plot)."))
    return [
        {"svg": inline_svg(partial(draw, fit), key, caption.partition(":")[0], caption), "caption": caption}
        for key, draw, caption in kinds
    ]
