"""Rows whose values are usual but do not go together: the distance, the router that measures it, and its artifact."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from feddrm import Federation
from feddrm.router import Recipe, Router, RouterSettings, fit_router, load_router, save_router
from feddrm.router.artifact import DECORRELATED, MANIFEST, ROUTER
from feddrm.router.decisions.decision import BROKEN, UNLIKE
from feddrm.router.features.decorrelated_inputs import SHRINKAGE, DecorrelatedInputs, strangeness
from feddrm.router.features.design_matrix import DesignMatrix
from feddrm.router.fit.calibration import STRANGER
from feddrm.router.membership import join_client, leave
from feddrm.router.solver.problem import Scaler, Whitening
from refusal import refused

RAW = {"raw": {"input": 2}}
QUICK = RouterSettings(features="raw", heads=False)


def design(moments: Tensor) -> DesignMatrix:
    """A design whose pooled second moments are these."""
    width = len(moments)
    scaler = Scaler(torch.zeros(width), torch.ones(width))
    return DesignMatrix(Recipe.parse("raw"), scaler, Whitening.of({"moments": 7 * moments, "count": torch.tensor(7.0)}))


def correlated(by: float) -> Tensor:
    return torch.tensor([[1, by], [by, 1]], dtype=torch.float64)


def test_the_distance_is_that_of_mahalanobis_and_columns_have_exact_shares() -> None:
    """In closed form: along the axes (1, 1) and (1, -1) the variances are 1.98 and 0.02."""
    inputs = DecorrelatedInputs.of(design(correlated(0.98)), RAW)
    assert inputs is not None
    rows = torch.tensor([[1.5, 1.5], [1.5, -1.5]], dtype=torch.float64)
    expected = torch.tensor([1.5**2 / (1.98 + SHRINKAGE), 1.5**2 / (0.02 + SHRINKAGE)], dtype=torch.float64)
    torch.testing.assert_close(strangeness(rows, inputs), expected)
    torch.testing.assert_close(strangeness(rows, None), torch.full((2,), 2.25, dtype=torch.float64))
    torch.testing.assert_close(inputs.squares(rows), expected[:, None].expand(2, 2) / 2)  # alike: half each
    scale = torch.tensor([3.0, 0.5], dtype=torch.float64)
    torch.testing.assert_close(inputs.scaled(scale).squares(rows * scale), inputs.squares(rows))


def test_the_distance_does_not_depend_on_the_rotation_or_on_the_blocks_scale() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(500, 4, generator=g, dtype=torch.float64) @ torch.randn(4, 4, generator=g, dtype=torch.float64)
    x = (x - x.mean(0)) / x.std(0, correction=0)
    moments, widths = x.T @ x / len(x), {"raw": {"input": 4}}
    inputs, stretched = (DecorrelatedInputs.of(design(factor**2 * moments), widths) for factor in (1, 0.1))
    assert inputs is not None
    assert stretched is not None
    shrunk = torch.linalg.inv(moments + SHRINKAGE * torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close(strangeness(x, inputs), torch.einsum("ni,ij,nj->n", x, shrunk, x) / 4)
    torch.testing.assert_close(strangeness(0.1 * x, stretched), strangeness(x, inputs))


def test_uncorrelated_inputs_are_as_strange_as_before_and_so_is_a_constant_one() -> None:
    moments = torch.diag(torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))
    inputs = DecorrelatedInputs.of(design(moments), {"raw": {"input": 3}})
    rows = torch.tensor([[1.0, 2.0, -3.0]], dtype=torch.float64)
    torch.testing.assert_close(strangeness(rows, inputs) * (1 + SHRINKAGE), strangeness(rows, None))


def test_only_the_part_that_is_the_table_counts() -> None:
    moments = torch.eye(5, dtype=torch.float64)
    moments[2:4, 2:4] = correlated(0.9)
    inputs = DecorrelatedInputs.of(design(moments), {"embedding": {"embedding": 2}, "multiscale": {"input": 2, "a": 1}})
    assert inputs is not None
    assert inputs.places.tolist() == [2, 3]
    rows = torch.tensor([[9.0, 9, 1, -1, 9], [9, 9, 1, 1, 9]], dtype=torch.float64)
    expected = torch.tensor([1 / (0.1 + SHRINKAGE), 1 / (1.9 + SHRINKAGE)], dtype=torch.float64)
    torch.testing.assert_close(strangeness(rows, inputs), expected)
    rows[0, 0], rows[1, 4] = torch.inf, torch.nan
    assert strangeness(rows, inputs).isnan().all(), "what is broken elsewhere is still noticed"


def test_where_the_inputs_are_not_known() -> None:
    assert DecorrelatedInputs.of(design(correlated(0.5)), {"embedding": {"embedding": 2}}) is None
    assert DecorrelatedInputs.of(design(torch.zeros(2, 2, dtype=torch.float64)), RAW) is None
    assert DecorrelatedInputs.of(dataclasses.replace(design(correlated(0.5)), whitening=None), RAW) is None
    assert DecorrelatedInputs.known((256,), 2560)
    assert not DecorrelatedInputs.known((256,), 2559)
    assert not DecorrelatedInputs.known((257,), 10**6)
    assert not DecorrelatedInputs.known((1, 2, 2), 10**6)


def drawn(seed: int, shift: float, by: float = 0.98, count: int = 200) -> tuple[Tensor, Tensor]:
    """Rows of two correlated columns and an independent one."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=g)
    x[:, 1] = by * x[:, 0] + (1 - by**2) ** 0.5 * x[:, 1]
    return x + shift, torch.arange(count) % 2


@pytest.fixture(scope="module")
def table() -> Federation:
    return Federation.from_arrays(
        {"oslo": drawn(0, -0.3), "lima": drawn(1, 0.3)}, test={"oslo": drawn(2, -0.3), "lima": drawn(3, 0.3)}
    )


@pytest.fixture(scope="module")
def fitted(table: Federation) -> Router:
    return fit_router(None, {}, table, QUICK).router


BROKEN_PAIR = [[2.0, 2.0, 0.0], [2.0, -2.0, 0.0]]  # every value is usual, but not the second pair


def test_usual_values_that_do_not_go_together_are_refused(table: Federation, fitted: Router) -> None:
    decision = fitted.route(BROKEN_PAIR)
    assert decision.reason == ("", UNLIKE)
    assert decision.strangeness is not None
    rows = torch.cat([client.view(client.train.x) for client in table.clients])
    strange = strangeness(fitted.scaler(rows), fitted.decorrelated)
    torch.testing.assert_close(fitted.strangeness(rows), strange, rtol=1e-4, atol=1e-5)
    assert fitted.calibration.unlike_above == pytest.approx(STRANGER * float(strange.max()), rel=1e-5)
    assert float(strange.mean()) == pytest.approx(1, abs=0.15), "the mean of a Mahalanobis distance by its width"
    tested = torch.cat([client.view(client.test.x) for client in table.clients])
    assert UNLIKE not in fitted.route(tested).reason
    assert strangeness(fitted.scaler(torch.tensor(BROKEN_PAIR)), None).max() < 4, "which the mean square would not tell"
    assert fitted.route([[2.0, torch.nan, 0.0]]).reason == (BROKEN,)


def test_shares_of_the_distance_add_up_and_name_the_columns_that_disagree(fitted: Router) -> None:
    explained = fitted.explain(BROKEN_PAIR)
    assert not explained.unlike[0].any()
    shares = explained.unlike[1]
    assert float(shares.sum()) == pytest.approx(1, abs=1e-12)
    assert (shares >= 0).all()
    assert shares[:2].tolist() == pytest.approx([0.5, 0.5], abs=0.05)
    assert explained.sentences()[1].startswith("unlike the training data: x")


def test_the_artifact_has_the_matrix_and_an_older_one_measures_as_before(fitted: Router, tmp_path: Path) -> None:
    save_router(tmp_path / "new", fitted)
    again, rows = load_router(tmp_path / "new"), torch.tensor(BROKEN_PAIR)
    assert torch.equal(again.strangeness(rows), fitted.strangeness(rows))
    assert again.route(BROKEN_PAIR).reason == fitted.route(BROKEN_PAIR).reason

    older = dataclasses.replace(fitted, decorrelated=None)
    save_router(tmp_path / "old", older)
    assert not set(DECORRELATED) & set(load_file(tmp_path / "old" / ROUTER))
    opened = load_router(tmp_path / "old")
    assert opened.decorrelated is None
    torch.testing.assert_close(opened.strangeness(rows), opened.scaler(rows).square().mean(1))
    assert opened.route(BROKEN_PAIR).reason == ("", "")
    assert json.loads((tmp_path / "old" / MANIFEST).read_text())["format"] == "feddrm-router-1"

    assert fitted.decorrelated is not None
    for part in (
        DecorrelatedInputs(torch.tensor([0, 1, 3]), fitted.decorrelated.matrix),
        DecorrelatedInputs(torch.tensor([0, 1]), fitted.decorrelated.matrix),
    ):
        object.__setattr__(older, "decorrelated", part)
        save_router(tmp_path / "bad", older)
        with refused(f"tensor '{DECORRELATED[1]}' does not fit the features", "fit it again"):
            load_router(tmp_path / "bad")


def test_a_client_that_joins_changes_the_matrix_and_one_that_leaves_does_not(table: Federation, fitted: Router) -> None:
    everyone = {client.name: (client.train.x, client.train.y) for client in table.clients} | {
        "bonn": drawn(4, 0, -0.98)
    }
    joined = join_client(fitted, Federation.from_arrays(everyone, test=everyone), 0.1, QUICK)
    assert fitted.route(BROKEN_PAIR).reason[1] == UNLIKE
    assert joined.route(BROKEN_PAIR).reason == ("", ""), "the new client has such rows"
    assert leave(joined, "bonn").decorrelated is joined.decorrelated
