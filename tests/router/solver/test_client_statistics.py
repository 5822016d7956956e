"""The sums that clients send."""

from __future__ import annotations

import pytest
import torch

from feddrm.router.solver import client_statistics
from feddrm.router.solver.client_statistics import (
    BlockDiagonal,
    Sample,
    client_gradient,
    client_gradients,
    client_moments,
    client_scores,
    client_scores_at,
    client_sums,
    logits_at,
)
from feddrm.threads import intra_op_threads

from .made import clients_with_overlap


def test_messages_hold_no_sample() -> None:
    sample = clients_with_overlap()[0]
    message = client_gradient(sample, torch.zeros(4, 13, dtype=torch.float64))
    assert {key: tuple(value.shape) for key, value in message.items()} == {"count": (), "loss": (), "gradient": (4, 13)}
    assert set(client_scores(sample, torch.zeros(4, 13, dtype=torch.float64))) == {"count", "loss", "correct"}


def test_the_gradient_is_autograds() -> None:
    sample = clients_with_overlap()[1]
    point = torch.randn(4, 13, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    loss = torch.nn.functional.cross_entropy(logits_at(sample.x, point), sample.y, reduction="sum")
    (expected,) = torch.autograd.grad(loss, point)
    message = client_gradient(sample, point.detach())
    assert torch.allclose(message["gradient"], expected, atol=1e-10)
    assert torch.allclose(message["loss"], loss.detach(), atol=1e-10)


def test_several_questions_about_the_same_samples_are_as_many_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(50, 4, generator=g, dtype=torch.float64), torch.randint(3, (50, 5), generator=g)
    point = torch.randn(15, 5, generator=g, dtype=torch.float64)
    apart = BlockDiagonal.of([Sample(x, column, torch.zeros(50, 3, dtype=torch.float64)) for column in y.T])
    for block in (2**19, 150):  # at once, and in blocks of ten rows
        monkeypatch.setitem(client_statistics.BLOCK, "cpu", block)
        for sums in (client_gradient, client_scores):
            expected, found = sums(apart, point), sums(Sample(x, y), point)
            assert set(found) == set(expected)
            for key, value in expected.items():
                torch.testing.assert_close(found[key], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("together", [1024, 7])  # outputs in one product: those of all five points, and of two
def test_several_points_at_once_are_one_after_another(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(50, 4, generator=g, dtype=torch.float64), torch.randint(3, (50,), generator=g)
    points = list(torch.randn(5, 3, 5, generator=g, dtype=torch.float64))
    monkeypatch.setattr(client_statistics, "TOGETHER", together)
    for offset in (None, torch.randn(50, 3, generator=g, dtype=torch.float64)):
        sample = Sample(x, y, offset)
        for one, several in ((client_gradient, client_gradients), (client_scores, client_scores_at)):
            for point, found in zip(points, several(sample, points), strict=True):
                expected = one(sample, point)
                assert set(found) == set(expected)
                for key, value in expected.items():
                    torch.testing.assert_close(found[key], value, rtol=1e-12, atol=1e-12)


def test_clients_of_any_length_are_each_on_its_own() -> None:
    """Groups of padded clients, an empty one among them, against one client after another."""
    g = torch.Generator().manual_seed(2)
    sizes = (3, 0, 200, 41, 90)
    samples = [
        Sample(
            torch.randn(n, 4, generator=g, dtype=torch.float64),
            torch.randint(3, (n,), generator=g),
            torch.randn(n, 3, generator=g, dtype=torch.float64),
        )
        for n in sizes
    ]
    point = torch.randn(15, 5, generator=g, dtype=torch.float64)
    apart = BlockDiagonal.of(samples)
    assert len(apart.groups) > 1
    assert len(apart) == sum(sizes)
    for sums in (client_gradient, client_scores):
        found, own = sums(apart, point), [sums(s, p) for s, p in zip(samples, torch.split(point, 3), strict=True)]
        assert set(found) == set(own[0])
        for key, value in found.items():
            parts = [part[key] for part in own]
            expected = torch.cat(parts) if key == "gradient" else torch.stack(parts).sum()
            torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


def test_sums_over_blocks_of_rows_are_those_over_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    sample, point = clients_with_overlap()[1], torch.randn(4, 13, dtype=torch.float64)
    whole, scores = client_gradient(sample, point), client_scores(sample, point)
    monkeypatch.setitem(client_statistics.BLOCK, "cpu", 4 * 3)  # three rows at a time
    assert len(sample) % 3 or len(sample) > 3 * client_statistics.STRIPES
    for key, value in client_gradient(sample, point).items():
        assert torch.allclose(value, whole[key], atol=1e-10), key
    for key, value in client_scores(sample, point).items():
        assert torch.allclose(value, scores[key], atol=1e-10), key


def test_sums_over_blocks_in_float32_are_close_to_those_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two products are rounded: errors of the sums are about 6e-8 times the sum of the samples' absolute values."""
    g = torch.Generator().manual_seed(4)
    x, y = torch.randn(6000, 20, generator=g), torch.randint(50, (6000,), generator=g)
    point = 0.5 * torch.randn(50, 21, generator=g, dtype=torch.float64)
    exact = Sample(x.double(), y)
    gradient, scores = client_gradient(exact, point), client_scores(exact, point)
    monkeypatch.setitem(client_statistics.BLOCK, "cpu", 50 * 64)
    streamed, scored = client_gradient(Sample(x, y), point), client_scores(Sample(x, y), point)
    assert all(value.dtype == torch.float64 for value in streamed.values())
    assert abs(float(streamed["loss"] / gradient["loss"]) - 1) < 1e-6
    assert float((streamed["gradient"] - gradient["gradient"]).abs().max()) < 1e-6 * len(x)
    assert abs(float(scored["loss"] / scores["loss"]) - 1) < 1e-6
    assert abs(float(scored["correct"] - scores["correct"])) <= 1  # two equal logits may change places


def test_sums_over_blocks_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    sample, point = clients_with_overlap()[1], torch.randn(4, 13, dtype=torch.float64)
    monkeypatch.setitem(client_statistics.BLOCK, "cpu", 4 * 3)
    sums = []
    for threads in (1, 2):
        with intra_op_threads(threads):
            sums.append(client_gradient(sample, point))
            assert torch.get_num_threads() == threads
    assert all(torch.equal(sums[0][key], sums[1][key]) for key in sums[0])


def test_sums_of_more_samples_than_are_taken_at_once() -> None:
    x = torch.randn(9000, 3, generator=torch.Generator().manual_seed(0))
    sums, moments = client_sums(x), client_moments(x.double())
    assert sums["count"] == moments["count"] == 9000
    torch.testing.assert_close(sums["sum"], x.double().sum(0))
    torch.testing.assert_close(sums["square"], x.double().square().sum(0))
    torch.testing.assert_close(moments["moments"], x.double().T @ x.double())
