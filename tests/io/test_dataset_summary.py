"""The dataset summary: what is written beside a run is read back, and broken files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from feddrm.data import Federation, load
from feddrm.data.summary import dataset_summary
from feddrm.errors import FeddrmError
from feddrm.io.dataset_summary import DatasetSummary
from refusal import refused


@pytest.fixture(scope="module")
def digits() -> Federation:
    return load("digits", clients=4, seed=0)


def test_a_summary_is_read_back_as_it_was_written(digits: Federation, tmp_path: Path) -> None:
    before = dataset_summary(digits)
    before.write(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.json", "data.safetensors"]
    after = DatasetSummary.read(tmp_path)
    assert dict(after.facts) == dict(before.facts)
    assert (after.name, after.names, after.classes) == (digits.name, digits.names, digits.classes)
    np.testing.assert_array_equal(after.counts, digits.counts())
    np.testing.assert_array_equal(after.sizes, digits.sizes)
    assert after.gallery is not None
    assert digits.gallery is not None
    np.testing.assert_array_equal(after.gallery, digits.gallery)
    assert after.same_samples
    facts = json.loads((tmp_path / "data.json").read_text())
    assert facts == digits.describe() | {
        "digest": digits.digest(),
        "columns": None,
        "same_samples": True,
        "gallery_labels": [[0, 1, 2, 3, 4, 5, 6, 7]] * 4,
    }


def test_pictures_have_the_names_of_their_classes(digits: Federation, tmp_path: Path) -> None:
    pixels, labels = np.zeros((6, 5, 5, 3), dtype=np.uint8), np.array(["cat", "dog"] * 3)
    own = Federation.from_arrays(dict.fromkeys(("oslo", "lima"), (pixels, labels)))
    tests = {client.name: [own.classes[y] for y in client.test.y.tolist()] for client in own.clients}
    assert dataset_summary(own).picture_labels == tests
    dataset_summary(digits).write(tmp_path)
    assert DatasetSummary.read(tmp_path).picture_labels[digits.names[2]] == list("01234567")
    facts = json.loads((tmp_path / "data.json").read_text())
    for wrong in ([[0] * 8] * 3, [[99] * 8] * 4, [["cat"] * 8] * 4):
        (tmp_path / "data.json").write_text(json.dumps(facts | {"gallery_labels": wrong}))
        with refused("does not describe a federation"):
            DatasetSummary.read(tmp_path)
    del facts["gallery_labels"]  # a run of a former version
    (tmp_path / "data.json").write_text(json.dumps(facts))
    assert DatasetSummary.read(tmp_path).picture_labels == {name: [] for name in digits.names}


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"gallery": torch.zeros(4, 8, 1, 8, 8)}, "gallery should be uint8"),
        ({"gallery": torch.zeros(3, 8, 1, 8, 8, dtype=torch.uint8)}, "gallery should be uint8"),
        ({"column_means": torch.zeros(4, 2, dtype=torch.int64)}, "column_means should be numbers"),
        ({"column_means": torch.zeros(5, 2)}, "column_means should be numbers"),
    ],
)
def test_tensors_of_the_wrong_shape_or_type_are_refused(
    digits: Federation, tmp_path: Path, tensors: dict[str, torch.Tensor], why: str
) -> None:
    dataset_summary(digits).write(tmp_path)
    save_file(tensors, tmp_path / "data.safetensors")
    with pytest.raises(FeddrmError, match=rf"data.safetensors is broken \({why}"):
        DatasetSummary.read(tmp_path)


def test_class_counts_of_the_wrong_length_are_refused(digits: Federation, tmp_path: Path) -> None:
    dataset_summary(digits).write(tmp_path)
    facts = json.loads((tmp_path / "data.json").read_text())
    facts["classes"].append("eleven")
    (tmp_path / "data.json").write_text(json.dumps(facts))
    with pytest.raises(FeddrmError, match=r"data.json is broken \(class_counts do not fit"):
        DatasetSummary.read(tmp_path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "is not JSON"),
        ("[]", "expected an object, found list"),
        ('{"name": "x", "clients": 3, "classes": []}', "it does not describe a federation"),
        ('{"name": "x", "clients": [], "classes": []}', "class_counts do not fit"),
    ],
)
def test_facts_that_describe_no_federation_are_refused(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "data.json").write_text(content)
    with refused(f"{tmp_path / 'data.json'} is broken", why, "restore the file or train the run again"):
        DatasetSummary.read(tmp_path)


def test_pictures_may_be_missing_and_facts_may_not(digits: Federation, tmp_path: Path) -> None:
    with refused(f"cannot read {tmp_path / 'data.json'}", "restore the file or train the run again"):
        DatasetSummary.read(tmp_path)
    dataset_summary(digits).write(tmp_path)
    (tmp_path / "data.safetensors").unlink()
    assert DatasetSummary.read(tmp_path).gallery is None


def test_sites_may_keep_their_class_counts_to_themselves(digits: Federation, tmp_path: Path) -> None:
    dataset_summary(digits).write(tmp_path)
    facts = json.loads((tmp_path / "data.json").read_text())
    for client in facts["clients"]:
        client["class_counts"] = None
    (tmp_path / "data.json").write_text(json.dumps(facts))
    assert DatasetSummary.read(tmp_path).counts is None
