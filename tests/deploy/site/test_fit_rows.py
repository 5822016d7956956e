"""The rows of a fit at a site: what the floors count in them, and what survives a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from feddrm.data import Client, Split
from feddrm.deploy.site.fit_rows import FitRows, MessageSamples, SiteClient
from feddrm.deploy.site.floors import Floors
from feddrm.deploy.site.private_store import PrivateStore
from feddrm.deploy.wire.messages import Message
from feddrm.models import Identity
from refusal import refused

CLASSES, FOLDS, CROPS = 2, 2, 3
LABELS = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
START = {"recipe": [{"name": "raw"}], "parts": FOLDS, "used": FOLDS, "seed": 0, "sizes": [len(LABELS)], "crops": CROPS}
TABLE = {"table/raw/mean": torch.zeros(3), "table/raw/scale": torch.ones(3)}


def rows(folder: Path, floors: Floors, subject: list[int] | None = None) -> FitRows:
    """A fit with three crops of every sample has begun."""
    whose = None if subject is None else torch.tensor(subject)
    x = torch.arange(30, dtype=torch.float32).reshape(10, 3)
    client = Client("oslo", Split(x, LABELS, whose), Split(x[:2], LABELS[:2]))
    net = Identity().build((3,), CLASSES, 2)
    return FitRows(net, SiteClient(client, 0, None, 2, CLASSES), PrivateStore(folder, "training"), floors)


def begun(folder: Path, floors: Floors, subject: list[int] | None = None) -> tuple[FitRows, MessageSamples]:
    own = rows(folder, floors, subject)
    own.begin(Message({"kind": "fit", "step": "fold_moments", **START}, {}))
    return own, MessageSamples(own, Message({}, TABLE))


def test_crops_of_a_sample_are_rows_of_one_part_and_one_subject(tmp_path: Path) -> None:
    own, samples = begun(tmp_path, Floors(), subject=[4, 4, 4, 1, 1, 1, 2, 2, 5, 5])
    assert own.features["raw"].shape == (30, 3)
    assert own.subject.tolist() == [4, 4, 4, 1, 1, 1, 2, 2, 5, 5] * CROPS
    for subject in (1, 2, 4, 5):
        assert len(set(own.part[own.subject == subject].tolist())) == 1
    assert sorted(samples.subject_inside(FOLDS).tolist()) == sorted(own.subject.tolist())
    first = samples.subject_inside(1)
    assert first.tolist() == own.subject[own.part == 0].tolist()
    assert len(first) == len(samples.inside("raw", "class", 0).y)


@pytest.mark.parametrize(("floor", "enough"), [(5, True), (6, False)])
def test_a_fold_of_five_samples_and_their_crops_has_five(tmp_path: Path, floor: int, enough: bool) -> None:
    samples = begun(tmp_path, Floors(per_sum=floor))[1]
    if enough:
        assert len(samples.inside("raw", "client", 0).y) == 5 * CROPS
    else:
        with refused("a fold of the training samples", f"per_sum={floor}"):
            samples.inside("raw", "client", 0)


def test_crops_do_not_help_a_class_over_its_floor(tmp_path: Path) -> None:
    """A class of four samples is divided between two folds: three crops of the rest are more rows than the floor."""
    own, samples = begun(tmp_path, Floors(per_class=4))
    left = [int((LABELS[own.part[:10] != fold] == 1).sum()) for fold in range(FOLDS)]
    assert max(left) * CROPS >= 4 > max(left)
    assert len(samples.outside("raw", "class", None).y) == 30
    with refused("a class of the samples of a fit", "per_class=4"):
        samples.outside("raw", "class", left.index(max(left)))
    assert len(samples.outside("raw", "client", 0).y) == 15, "the client of a sample is no class of its own"


def test_a_fold_counts_subjects(tmp_path: Path) -> None:
    pairs = [4, 4, 4, 1, 1, 1, 2, 2, 5, 5]
    begun(tmp_path / "two", Floors(per_sum=2), pairs)[1].inside("raw", "client", 0)
    with refused("a fold of the training samples", "per_sum=3"):
        begun(tmp_path / "three", Floors(per_sum=3), pairs)[1].inside("raw", "client", 0)
    with refused("the training samples", "per_sum=5"):
        begun(tmp_path / "five", Floors(per_sum=5), pairs)[1].outside("raw", "client", None)


def test_a_site_that_was_restarted_goes_on_with_the_same_rows(tmp_path: Path) -> None:
    before, _ = begun(tmp_path, Floors())
    after = rows(tmp_path, Floors())
    assert torch.equal(before.features["raw"], after.features["raw"])
    assert torch.equal(before.part, after.part)


def test_a_site_that_knows_of_no_fit_says_so(tmp_path: Path) -> None:
    with refused("does not know of the fit", "let the server start it again"):
        _ = rows(tmp_path, Floors()).features
