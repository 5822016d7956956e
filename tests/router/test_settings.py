"""The settings of a router's fit, and how samples are held out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddrm.router.settings import Holdout, RouterSettings
from refusal import refused


def test_parts_cover_all_samples_and_copies_share_theirs() -> None:
    part = Holdout(5, 5).draw(0, 40, seed=1)
    assert sorted(set(part.tolist())) == [0, 1, 2, 3, 4]
    assert len(part) == 40
    doubled = Holdout(5, 5).draw(0, 10, seed=1, copies=2)
    assert torch.equal(doubled[:10], doubled[10:])
    assert not torch.equal(Holdout(5, 5).draw(0, 40, seed=1), Holdout(5, 5).draw(1, 40, seed=1))


@given(size=st.integers(1, 60), parts=st.integers(2, 16), seed=st.integers(0, 5))
def test_the_number_of_remaining_samples_is_known_without_drawing(size: int, parts: int, seed: int) -> None:
    holdout = Holdout(parts, parts)
    part = holdout.draw(3, size, seed)
    for fold in range(parts):
        assert holdout.remaining(size, fold) == int((part != fold).sum())
    assert holdout.remaining(size, None) == size


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6), used=st.integers(1, 3))
def test_a_fold_leaves_nothing_to_fit_where_every_client_has_one_sample(sizes: list[int], used: int) -> None:
    holdout = Holdout(3, used)
    left = [sum(int((holdout.draw(i, n, 0) != fold).sum()) for i, n in enumerate(sizes)) for fold in range(used)]
    assert holdout.leaves_samples(sizes) == (min(left) > 0)


@given(subject=st.lists(st.integers(0, 9), min_size=1, max_size=40), seed=st.integers(0, 5))
def test_samples_of_a_subject_share_a_part(subject: list[int], seed: int) -> None:
    part = Holdout(3, 3).draw(1, len(subject), seed, 2, torch.tensor(subject))
    of = {(one, int(fold)) for one, fold in zip(subject * 2, part, strict=True)}
    subjects = len(set(subject))
    if subjects > 1:
        assert len(of) == subjects
        assert len({fold for _, fold in of}) == min(3, subjects), "every part has one"
    else:  # held out, the only subject would leave nothing
        assert torch.equal(part, Holdout(3, 3).draw(1, len(subject), seed, 2))


def test_large_federations_hold_out_one_part() -> None:
    assert Holdout.suggested(500) == Holdout(5, 5)
    assert Holdout.suggested(42_000) == Holdout(16, 1)
    assert Holdout(5, 5).at_most(2) == Holdout(5, 2)
    with refused("holdout of 3 of 2 parts"):
        Holdout(2, 3).check()


@pytest.mark.parametrize(
    "settings",
    [
        {"crops": 0},
        {"rounds": 0},
        {"path_rounds": 0},
        {"part_bytes": 0},
        {"tolerance": -1.0},
        {"seed": -1},
        {"seed": 2**32},
        {"features": "colou"},
    ],
)
def test_settings_that_cannot_be_fitted_are_refused(settings: dict[str, object]) -> None:
    with refused(*(f"{name}={value}" if name != "features" else str(value) for name, value in settings.items())):
        RouterSettings(**settings).check()  # type: ignore[arg-type]


def test_crops_default_to_eight_on_a_gpu() -> None:
    assert [RouterSettings().crops_on(torch.device(kind)) for kind in ("cpu", "cuda")] == [1, 8]
    assert RouterSettings(crops=3).crops_on(torch.device("cpu")) == 3


def test_a_part_is_left_out_where_it_takes_more_than_its_limit() -> None:
    for kind, most in (("cpu", 512 * 2**20), ("cuda", 8 * 2**30)):
        device = torch.device(kind)
        assert RouterSettings().too_large("answers", most, device) is None
        assert RouterSettings().too_large("answers", most + 1, device) is not None
    assert RouterSettings(part_bytes=2**30).too_large("answers", 2**30, torch.device("cpu")) is None
    line = RouterSettings(part_bytes=2**20).too_large("answers", 3 * 2**20, torch.device("cuda"))
    assert line == "answers: left out, it takes 3 MiB and part_bytes allows 1 MiB"
