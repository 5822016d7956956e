"""Labels, classes, clients and the split into training and test samples: what all sources share."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from feddrm.data import Federation
from feddrm.data.sources.labelled_samples import (
    Division,
    LabelledSamples,
    assemble,
    check_same_clients,
    spelling_variants,
)
from feddrm.errors import FeddrmError
from letters import LETTERS
from refusal import refused

from_arrays = Federation.from_arrays


def rows(n: int = 10) -> np.ndarray:
    return np.arange(3.0 * n).reshape(n, 3)


def pair(n: int = 10) -> tuple[np.ndarray, np.ndarray]:
    return rows(n), np.arange(n) % 2


def two(**changed: Any) -> dict[str, Any]:
    return {"oslo": pair(), "lima": pair()} | changed


def both(y: Any) -> dict[str, Any]:
    """Two clients with the same labels."""
    return {"oslo": (rows(len(y)), y), "lima": (rows(len(y)), y)}


def distinct_spelling(labels: list[str]) -> bool:
    composed = all(unicodedata.is_normalized("NFC", label) for label in labels)
    return composed and len(set(labels)) > 1 and spelling_variants(sorted(set(labels))) is None


# The split


@given(
    sizes=st.lists(st.integers(4, 30), min_size=2, max_size=5),
    fraction=st.sampled_from([0.1, 0.3, 0.5, 0.75]),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_sample_is_kept_exactly_once(sizes: list[int], fraction: float, seed: int) -> None:
    starts = np.cumsum([0, *sizes])[:-1]
    clients = {
        f"c{i}": (np.arange(start, start + n)[:, None], np.arange(start, start + n) % 3)
        for i, (start, n) in enumerate(zip(starts, sizes, strict=True))
    }
    fed = from_arrays(clients, test_fraction=fraction, seed=seed)
    for client, (x, _) in zip(fed.clients, clients.values(), strict=True):
        values = torch.cat([client.train.x, client.test.x])[:, 0]
        labels = torch.cat([client.train.y, client.test.y])
        assert sorted(values.tolist()) == x[:, 0].tolist()
        assert torch.equal(values.long() % 3, labels)
        assert len(client.train) == int(round(1 - fraction, 12) * len(x))


def test_split_of_a_tenth_rounds_as_arithmetic_does() -> None:
    # 1 - 0.9 is 0.09999999999999998: rounding that down would leave nothing to train on.
    fed = from_arrays(two(), test_fraction=0.9)
    assert fed.sizes.tolist() == [1, 1]


def test_a_client_with_too_few_samples_to_split_is_refused() -> None:
    with refused("client 'lima' has too few samples (1)", "test_fraction=0.3", "give it more"):
        from_arrays(two(lima=pair(1)))


def test_impossible_fractions_and_seeds_are_refused() -> None:
    for fraction in (0, 1, 2, -0.1, float("nan"), "0.3", None):
        with refused(f"test_fraction={fraction!r}", "give a fraction between 0 and 1"):
            from_arrays(two(), test_fraction=fraction)
    for seed in (1.5, None, "1", -1, 2**32):
        with refused(f"seed {seed!r} is out of range", "give a whole number from 0 to 4294967295"):
            from_arrays(two(), seed=seed)


def test_numpy_fractions_and_seeds_become_plain_numbers() -> None:
    division = Division.checked("here", np.float64(0.25), np.int64(7))
    assert (division, type(division.test_fraction), type(division.seed)) == (Division(0.25, 7), float, int)


def test_the_federation_shares_no_memory_with_the_caller() -> None:
    arrays = two()
    fed = from_arrays(arrays, test=arrays)
    before = fed.clients[0].train.x.clone()
    arrays["oslo"][0][:] = -1
    assert torch.equal(fed.clients[0].train.x, before)


# Classes


@given(st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=2, max_size=20).filter(distinct_spelling))
def test_text_labels_come_back_by_their_class(labels: list[str]) -> None:
    fed = from_arrays(both(labels), test=both(labels))
    assert fed.classes == tuple(sorted(set(labels)))
    for client in fed.clients:
        assert [fed.classes[k] for k in client.train.y.tolist()] == labels
        assert [fed.classes[k] for k in client.test.y.tolist()] == labels


@given(st.lists(st.integers(-(2**40), 2**40), min_size=2, max_size=20).filter(lambda y: len(set(y)) > 1))
def test_whole_numbers_are_ordered_as_numbers(labels: list[int]) -> None:
    fed = from_arrays(both(labels), test=both(labels))
    assert fed.classes == tuple(str(k) for k in sorted(set(labels)))
    assert [int(fed.classes[k]) for k in fed.clients[1].train.y.tolist()] == labels


def test_classes_set_the_order_of_text_and_the_names_of_numbers() -> None:
    y = ["b", "a"] * 5
    fed = from_arrays(both(y), test=both(y), classes=["b", "a", "c"])
    assert fed.classes == ("b", "a", "c")
    assert fed.clients[0].train.y.tolist() == [0, 1] * 5
    named = from_arrays(two(), test=two(), classes=["no", "yes"])
    assert named.classes == ("no", "yes")
    assert named.clients[0].train.y.tolist() == [0, 1] * 5


def test_a_class_that_falls_into_the_test_part_alone_is_still_a_class() -> None:
    y = np.zeros(10, dtype=int)
    y[0] = 5
    y[1] = 9
    assert {from_arrays(both(y), seed=seed).classes for seed in range(40)} == {("0", "5", "9")}


def test_one_client_may_have_one_class() -> None:
    fed = from_arrays(two(lima=(rows(), [1] * 10)))
    assert fed.counts().tolist() == [[5, 5], [0, 10]]


def test_a_federation_with_one_class_is_refused() -> None:
    with refused("every sample has the label 4", "add samples of another class"):
        from_arrays(both([4] * 10))


def test_labels_of_two_types_are_refused() -> None:
    with refused("client 'lima': y[2]: label 'cat' is text", "that of own: client 'oslo': y[0] is a whole number"):
        from_arrays(two(lima=(rows(), [0, 1, "cat"] + [0] * 7)))


def test_wrong_class_names_are_refused() -> None:
    with refused("client 'oslo': y[1]: label 1 is not one of the classes (0)", "add it to classes"):
        from_arrays(two(), classes=["no"])
    with refused("label 'dog' is not one of the classes (cat, dogs); did you mean 'dogs'?", "add it to classes"):
        from_arrays(both(["cat", "dog"] * 5), classes=["cat", "dogs"])
    for classes in ("ab", ["a", "a"], ["a", ""], [0, 1]):
        with refused("classes=", "distinct names"):
            from_arrays(two(), classes=classes)


def test_classes_that_differ_only_in_case_or_spaces_are_refused() -> None:
    pairs = {n: (rows(4), y) for n, y in (("oslo", ["Ill", "well"] * 2), ("lima", ["ill", "well"] * 2))}
    with refused("own: the classes 'Ill' and 'ill' differ only in case or spaces", "spell them alike"):
        from_arrays(pairs)
    with refused("'very ill' and 'very ill '"):
        from_arrays({n: (rows(4), y) for n, y in (("oslo", ["very ill", "w"] * 2), ("lima", ["very ill ", "w"] * 2))})
    assert from_arrays(pairs, classes=["ill", "Ill", "well"]).counts().tolist() == [[0, 2, 2], [2, 0, 2]]
    assert from_arrays(both(list("aAbB"))).classes == ("A", "B", "a", "b")


def test_one_letter_in_one_character_or_in_two_is_one_letter() -> None:
    one, other = "k\u00f6", "ko\u0308"
    pairs = {n: (rows(4), ["a", y] * 2) for n, y in (("oslo", one), ("lima", other))}
    assert from_arrays(pairs).classes == ("a", one)
    assert from_arrays(pairs, classes=[other, "a"]).counts().tolist() == [[2, 2], [2, 2]]
    with refused("duplicate client name"):
        from_arrays({one: pair(), other: pair()})


def test_long_values_are_shortened_in_errors() -> None:
    with pytest.raises(FeddrmError) as caught:
        from_arrays(two(lima=(rows(), [0] * 9 + ["x\n" * 5000])))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    with refused("client 'lima' is array([[", "give a pair"):
        from_arrays(two(lima=np.arange(10.0).reshape(5, 2)))


# Subjects

PATIENTS = [f"p{i // 3}" for i in range(24)]


def is_whole(fed: Federation) -> bool:
    """Whether every client's subjects are known, of three samples each, and on one side."""
    for client in fed.clients:
        assert client.train.subject is not None
        assert client.test.subject is not None
        assert not set(client.train.subject.tolist()) & set(client.test.subject.tolist())
        assert torch.cat([client.train.subject, client.test.subject]).bincount().tolist() == [3] * 8
        # The fifth column of every source's samples names the subject.
        assert client.train.x.flatten(1)[:, 4].long().tolist() == client.train.subject.tolist()
    return True


def numbered() -> np.ndarray:
    return np.concatenate([rows(24), rows(24)[:, :1], (np.arange(24) // 3)[:, None]], axis=1)


def table() -> pd.DataFrame:
    return pd.DataFrame(numbered(), columns=list("abcde")).assign(y=np.arange(24) % 2, patient=PATIENTS)


@pytest.mark.parametrize("source", ["arrays", "npz", "csv", "auto", "folders", "dataset"])
def test_samples_of_a_subject_are_not_divided(source: str, tmp_path: Path) -> None:
    x, y = numbered(), np.arange(24) % 2
    if source == "arrays":
        fed = from_arrays({"oslo": (x, y, PATIENTS), "lima": (torch.tensor(x), y, np.arange(24) // 3)})
        assert fed.settings["subject"] == "given"
    elif source == "npz":
        for name in ("oslo", "lima"):
            np.savez(tmp_path / f"{name}.npz", x=x, y=y, subject=PATIENTS)
        fed = Federation.from_npz(tmp_path)
        owners = ["lima"] * 24 + ["oslo"] * 24
        np.savez(tmp_path / "all.npz", x=[*x, *x], y=[*y, *y], subject=PATIENTS * 2, client=owners)
        assert Federation.from_npz(tmp_path / "all.npz").digest() == fed.digest()
    elif source in ("csv", "auto"):
        schema = None if source == "csv" else "auto"
        fed = Federation.from_csv({"oslo": table(), "lima": table()}, label="y", subject="patient", schema=schema)
        assert fed.settings["subject"] == "patient"
        assert fed.columns == tuple("abcde"), "the subject is no input"
        if schema:  # standardised by the training rows alone
            means = torch.cat([client.train.x for client in fed.clients]).mean(0)
            assert torch.allclose(means, torch.zeros(5), atol=1e-5)
            return
    elif source == "folders":
        for client in ("oslo", "lima"):
            for i in range(24):
                path = tmp_path / client / "ab"[i % 2] / f"scan_p{i // 3}_{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("L", (3, 3), i // 3).save(path)
        fed = Federation.from_folders(tmp_path, subject=r"p(\d+)_")
        assert fed.settings["subject"] == r"p(\d+)_"
    else:
        datasets = pytest.importorskip("datasets")
        parts = {name: datasets.Dataset.from_pandas(table()) for name in ("oslo", "lima")}
        fed = Federation.from_dataset(parts, inputs=list("abcde"), label="y", subject="patient")
    assert is_whole(fed)


def test_the_fold_of_a_subject_is_a_part_of_the_data() -> None:
    """Another division among subjects gives other folds, even where the same samples are trained on."""
    x, y = rows(8), [0, 1] * 4
    test = two()
    feds = [
        from_arrays({"oslo": (x, y, who), "lima": (x, y)}, test=test) for who in ([0, 0, 1, 1] * 2, [0, 1, 1, 0] * 2)
    ]
    assert feds[0].digest() != feds[1].digest()
    assert from_arrays({"oslo": (x, y), "lima": (x, y)}, test=test).clients[0].train.subject is None


def test_subjects_that_cannot_be_divided_are_refused(tmp_path: Path) -> None:
    with refused("all 10 samples of client 'lima' are of one subject", "give it samples of others"):
        from_arrays(two(lima=(*pair(), ["ann"] * 10)))
    with refused("own: client 'lima': subjects has shape (9,) for 10 samples"):
        from_arrays(two(lima=(*pair(), ["ann"] * 9)))
    with refused("own: client 'lima': subjects has shape of its own, ragged for 10 samples"):
        from_arrays(two(lima=(*pair(), [(1, 2), *range(9)])))
    with refused("own: client 'lima': subjects[1] is 'nan', no name"):
        from_arrays(two(lima=(*pair(), [1.0, float("nan"), *range(8)])))
    with refused("test data of client 'lima': y[0]: 'p0' has training samples at client 'lima', too", "to one side"):
        from_arrays(two(lima=(*pair(), PATIENTS[:10])), test=two(lima=(*pair(), PATIENTS[:10])))
    with refused("has no column 'patent' for the subject; did you mean 'patient'?"):
        Federation.from_csv({"oslo": table(), "lima": table()}, label="y", subject="patent")
    with refused("label and subject are both column 'y'"):
        Federation.from_csv({"oslo": table(), "lima": table()}, label="y", subject="y")
    for client, i in ((c, i) for c in ("oslo", "lima") for i in range(4)):
        path = tmp_path / client / "ab"[i % 2] / f"p{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (3, 3), i).save(path)
    with refused("p0.png: subject='q(.)' finds nothing in its name", "rename it, or correct subject"):
        Federation.from_folders(tmp_path, subject="q(.)")
    with refused("subject='p(' is no regular expression", "correct it"):
        Federation.from_folders(tmp_path, subject="p(")
    with refused("p0.png: subject='(q)?p' finds nothing"):
        Federation.from_folders(tmp_path, subject="(q)?p")


# Clients


def test_assemble_returns_clients_and_class_names_in_order() -> None:
    def samples(*labels: str) -> LabelledSamples:
        return LabelledSamples(np.zeros((len(labels), 2), dtype=np.float32), labels, lambda i: f"row {i}")

    train = {"oslo": samples("b", "a"), "lima": samples("b")}
    clients, classes = assemble("toy", train, {"lima": samples("a"), "oslo": samples("b")}, Division(0.3, 0))
    assert ([c.name for c in clients], classes) == (["oslo", "lima"], ("a", "b"))
    assert [(c.train.y.tolist(), c.test.y.tolist()) for c in clients] == [([1, 0], [1]), ([1], [0])]


def test_test_samples_must_fit_the_training_samples() -> None:
    with refused("test data of client 'lima': y[9]: label 7 is not one of the classes (0, 1)", "correct it"):
        from_arrays(two(), test=two(lima=(rows(), [0] * 9 + [7])))
    with refused("test data for client 'limo'", "did you mean 'lima'?"):
        from_arrays(two(), test={"oslo": pair(), "limo": pair()})
    with refused("client 'lima' has no test data", "leave test out"):
        from_arrays(two(quito=pair()), test={"oslo": pair(), "quito": pair()})


def test_an_error_about_one_of_many_clients_is_short() -> None:
    names = [f"site{i}" for i in range(1000)]
    with pytest.raises(FeddrmError, match=r"'lima', which has no training data.*1,000 in all") as error:
        check_same_clients("own", names, [*names, "lima"])
    assert len(str(error.value)) < 300
