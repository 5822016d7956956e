"""Text in the form of statsmodels' summaries: a heading, facts in two columns, coefficients with intervals."""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import norm

from feddrm.drm.basis import Floats

WIDTH = 78


def heading(title: str) -> str:
    """A centred title over a double rule."""
    return f"{title:^{WIDTH}}\n{'=' * WIDTH}"


def two_columns(rows: Sequence[tuple[str, str, str, str]]) -> str:
    """Names and values, two of each per line."""
    half = WIDTH // 2 - 1
    return "\n".join(f"{a:<18}{b:>{half - 18}.{half - 18}}  {c:<18}{d:>{WIDTH - half - 20}}" for a, b, c, d in rows)


def coefficient_block(
    title: str, terms: Sequence[str], values: Floats, errors: Floats, confidence: float = 0.95
) -> str:
    """One line per coefficient: value, standard error, z, two-sided p-value and interval."""
    tail = (1 - confidence) / 2
    reach = norm.ppf(1 - tail)
    names = (f"[{tail:.4g}", f"{1 - tail:.4g}]")
    lines = ["=" * WIDTH, f"{title[:22]:<22}{'coef':>10}{'std err':>10}{'z':>9}{'P>|z|':>8}{names[0]:>10}{names[1]:>9}"]
    lines.append("-" * WIDTH)
    for term, value, error in zip(terms, values, errors, strict=True):
        z = value / error
        limits = value - reach * error, value + reach * error
        lines.append(
            f"{term[:22]:<22}{value:>10.4f}{error:>10.3f}{z:>9.3f}{2 * norm.sf(abs(z)):>8.3f}"
            f"{limits[0]:>10.3f}{limits[1]:>9.3f}"
        )
    return "\n".join([*lines, "=" * WIDTH])
