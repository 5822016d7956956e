"""Bring your own arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddrm.data.federation import Federation
from feddrm.data.partition import split
from feddrm.data.sources.build import from_arrays
from feddrm.errors import FeddrmError
from refusal import refused


def rows(n: int = 10, d: int = 3, start: int = 0) -> np.ndarray:
    return (np.arange(n * d, dtype=np.float64) + start).reshape(n, d)


def pair(n: int = 10, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    return rows(n, **options), np.arange(n) % 2


def two(**changed: Any) -> dict[str, Any]:
    return {"oslo": pair(), "lima": pair(start=1000)} | changed


def bad_x(x: Any) -> dict[str, Any]:
    return two(lima=(x, np.arange(len(x)) % 2))


def bad_y(y: Any) -> dict[str, Any]:
    return two(lima=(rows(), y))


# What is kept


def test_rows_keep_their_values_and_their_order_in_the_split() -> None:
    fed = from_arrays(two(), seed=7)
    (oslo, oslo_rest), (lima, lima_rest) = split([np.arange(10)] * 2, np.random.RandomState(7))
    assert fed.names == ("oslo", "lima")
    assert fed.clients[0].train.x.dtype == torch.float32
    assert fed.clients[0].train.x.tolist() == rows()[oslo].tolist()
    assert fed.clients[0].test.y.tolist() == (oslo_rest % 2).tolist()
    assert fed.clients[1].train.x.tolist() == rows(start=1000)[lima].tolist()
    assert fed.clients[1].test.x.tolist() == rows(start=1000)[lima_rest].tolist()
    assert [(len(c.train), len(c.test)) for c in fed.clients] == [(7, 3), (7, 3)]


def test_says_where_it_came_from() -> None:
    fed = from_arrays(two(), name="mine", seed=3, test_fraction=0.5)
    assert (fed.name, fed.source, fed.columns) == ("mine", "arrays given in Python", ("x0", "x1", "x2"))
    assert fed.settings == {"test": "split", "test_fraction": 0.5, "seed": 3}
    assert from_arrays(two(), test=two()).settings == {"test": "given"}
    assert from_arrays(two(), columns=["age", "chol", "ca"]).columns == ("age", "chol", "ca")


def test_rows_reach_the_network_as_given() -> None:
    fed = from_arrays(two())
    x = fed.clients[1].train.x
    assert torch.equal(fed.clients[1].view(x), x)


def test_the_class_method_is_the_same_function() -> None:
    here, there = from_arrays(two(), seed=5), Federation.from_arrays(two(), seed=5)
    assert all(torch.equal(a.train.x, b.train.x) for a, b in zip(here.clients, there.clients, strict=True))


def test_memory_is_not_shared_with_the_caller() -> None:
    given = two()
    fed = from_arrays(given, test=given)
    before = fed.clients[0].train.x.clone()
    given["oslo"][0][:] = -1
    assert torch.equal(fed.clients[0].train.x, before)


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
        kept = torch.cat([client.train.x, client.test.x])[:, 0]
        labels = torch.cat([client.train.y, client.test.y])
        assert sorted(kept.tolist()) == x[:, 0].tolist()
        assert torch.equal(kept.long() % 3, labels)
        assert len(client.train) == int(round(1 - fraction, 12) * len(x))


@given(st.lists(st.text(min_size=1, max_size=4), min_size=2, max_size=20).filter(lambda y: len(set(y)) > 1))
def test_text_labels_come_back_by_their_class(labels: list[str]) -> None:
    x = np.arange(len(labels), dtype=np.float32)[:, None]
    fed = from_arrays({"a": (x, labels), "b": (x, labels)}, test={"a": (x, labels), "b": (x, labels)})
    assert fed.classes == tuple(sorted(set(labels)))
    for client in fed.clients:
        assert [fed.classes[k] for k in client.train.y.tolist()] == labels
        assert [fed.classes[k] for k in client.test.y.tolist()] == labels


@given(st.lists(st.integers(-(2**40), 2**40), min_size=2, max_size=20).filter(lambda y: len(set(y)) > 1))
def test_whole_numbers_are_ordered_as_numbers(labels: list[int]) -> None:
    x = np.arange(len(labels), dtype=np.float32)[:, None]
    fed = from_arrays({"a": (x, labels), "b": (x, labels)}, test={"a": (x, labels), "b": (x, labels)})
    assert fed.classes == tuple(str(k) for k in sorted(set(labels)))
    assert [int(fed.classes[k]) for k in fed.clients[1].train.y.tolist()] == labels


def test_split_of_a_tenth_rounds_as_arithmetic_does() -> None:
    # 1 - 0.9 is 0.09999999999999998: rounding that down would leave nothing to train on.
    fed = from_arrays(two(), test_fraction=0.9)
    assert fed.sizes.tolist() == [1, 1]


# Labels


@pytest.mark.parametrize(
    "y",
    [
        [0, 1] * 5,
        (0, 1) * 5,
        np.arange(10) % 2,
        np.arange(10) % 2 == 1,
        (np.arange(10) % 2).astype(np.uint8),
        (np.arange(10) % 2).astype(np.float64),
        torch.arange(10) % 2,
        [torch.tensor(i % 2) for i in range(10)],
        list(np.arange(10) % 2),
        np.array([0, 1] * 5, dtype=object),
    ],
)
def test_labels_of_many_kinds(y: Any) -> None:
    fed = from_arrays(two(oslo=(rows(), y)), test=two())
    assert fed.classes == ("0", "1")
    assert fed.clients[0].train.y.tolist() == [0, 1] * 5


def test_text_labels_from_an_array() -> None:
    y = np.array(["no", "yes"] * 5)
    fed = from_arrays(
        {"oslo": (rows(), y), "lima": (rows(), y.astype(object))}, test={"oslo": pair_of(y), "lima": pair_of(y)}
    )
    assert fed.classes == ("no", "yes")
    assert fed.clients[1].test.y.tolist() == [0, 1] * 5


def pair_of(y: Any) -> tuple[np.ndarray, Any]:
    return rows(len(y)), y


def test_classes_set_the_order_of_text_and_the_names_of_numbers() -> None:
    y = ["b", "a"] * 5
    fed = from_arrays(
        {"oslo": pair_of(y), "lima": pair_of(y)}, test={"oslo": pair_of(y), "lima": pair_of(y)}, classes=["b", "a", "c"]
    )
    assert fed.classes == ("b", "a", "c")
    assert fed.clients[0].train.y.tolist() == [0, 1] * 5
    named = from_arrays(two(), test=two(), classes=["no", "yes"])
    assert named.classes == ("no", "yes")
    assert named.clients[0].train.y.tolist() == [0, 1] * 5


def test_a_class_that_falls_into_the_test_part_alone_is_still_a_class() -> None:
    y = np.zeros(10, dtype=int)
    y[0] = 5
    y[1] = 9
    seeds = range(40)
    assert {from_arrays({"a": (rows(), y), "b": (rows(), y)}, seed=s).classes for s in seeds} == {("0", "5", "9")}


def test_one_client_may_have_one_class() -> None:
    fed = from_arrays(two(lima=(rows(), [1] * 10)))
    assert fed.counts().tolist() == [[5, 5], [0, 10]]


def test_rows_of_python_numbers_in_an_object_array() -> None:
    x = rows().astype(object)
    x[0, 0] = 7
    assert from_arrays(two(oslo=(x, [0, 1] * 5)), test=two()).clients[0].train.x[0].tolist() == [7, 1, 2]


# Images


def pictures(n: int = 6, h: int = 4, w: int = 5, c: int = 3) -> np.ndarray:
    return np.random.RandomState(0).randint(0, 256, (n, h, w, c)).astype(np.uint8)


def as_images(x: Any) -> torch.Tensor:
    y = [0, 1] * (len(x) // 2)
    fed = from_arrays({"a": (x, y), "b": (x, y)}, test={"a": (x, y), "b": (x, y)})
    assert fed.columns is None
    assert fed.clients[0].train.x.dtype == torch.uint8
    return fed.clients[0].train.x


def test_images_in_every_layout_are_the_same_images() -> None:
    x = pictures()
    want = torch.from_numpy(x.transpose(0, 3, 1, 2).copy())
    for given_as in (
        x,
        x.tolist(),
        list(x),
        torch.from_numpy(x),
        x.transpose(0, 3, 1, 2),
        want,
        list(want),
        x.astype(np.int64),
        x / 255,
        (x / 255).astype(np.float32),
        want.float() / 255,
    ):
        assert torch.equal(as_images(given_as), want)


def test_grey_images_with_and_without_a_channel() -> None:
    x = pictures(c=1)
    want = torch.from_numpy(x.transpose(0, 3, 1, 2).copy())
    for given_as in (x, x[..., 0], torch.from_numpy(x[..., 0]), x.transpose(0, 3, 1, 2)):
        assert torch.equal(as_images(given_as), want)


def test_where_both_axes_could_be_channels_the_kind_of_array_decides() -> None:
    x = pictures(h=3, w=3)
    assert torch.equal(as_images(x), torch.from_numpy(x.transpose(0, 3, 1, 2).copy()))
    assert torch.equal(as_images(torch.from_numpy(x)), torch.from_numpy(x))
    assert torch.equal(as_images(list(torch.from_numpy(x))), torch.from_numpy(x))


def test_float_pixels_are_rounded_to_the_nearest() -> None:
    x = np.array([[[0.4, 0.6], [2.4, 2.6]]]) / 255
    assert as_images(np.concatenate([x, x]))[0].ravel().tolist() == [0, 1, 2, 3]


def test_images_are_scaled_to_minus_one_and_one() -> None:
    x = np.zeros((4, 2, 2), dtype=np.uint8)
    x[0] = 255
    fed = from_arrays({"a": (x, [0, 1, 0, 1]), "b": (x, [0, 1, 0, 1])}, test={"a": (x, [0] * 4), "b": (x, [0] * 4)})
    assert fed.clients[0].view(fed.clients[0].train.x).unique().tolist() == [-1.0, 1.0]


def test_bfloat16_and_sparse_tensors_are_read() -> None:
    x = torch.eye(10)
    for given_as in (x.to(torch.bfloat16), x.to_sparse(), x.requires_grad_()):
        fed = from_arrays({"a": (given_as, [0, 1] * 5), "b": (given_as, [0, 1] * 5)}, test=None)
        assert fed.clients[0].train.x.sum() == 7


# What is refused


def test_wrong_settings() -> None:
    for fraction in (0, 1, -0.1, float("nan")):
        with refused(f"test_fraction={fraction}", "between 0 and 1"):
            from_arrays(two(), test_fraction=fraction)
    with refused("seed -1", "from 0 to 4294967295"):
        from_arrays(two(), seed=-1)


def test_wrong_clients() -> None:
    with refused("own", "at least two clients, got 1", "add another"):
        from_arrays({"oslo": pair()})
    with refused("duplicate client name 'Oslo'", "also 'oslo'", "rename"):
        from_arrays({"oslo": pair(), "Oslo": pair()})
    with refused("duplicate client name 'oslo'", "rename"):
        from_arrays([("oslo", pair()), ("oslo", pair())])
    with refused("'a/b'", "cannot name a folder"):
        from_arrays({"oslo": pair(), "a/b": pair()})
    with refused("(3, ", "name in text"):
        from_arrays({3: pair(), "lima": pair()})  # type: ignore[dict-item]
    with refused("client 'lima'", "give a pair (X, y)"):
        from_arrays(two(lima=rows()))


def test_wrong_x() -> None:
    with refused("client 'lima': X has shape (10,)", "X.reshape(-1, 1)"):
        from_arrays(bad_x(np.arange(10.0)))
    with refused("client 'lima': X has shape (0, 3)", "no samples", "leave the client out"):
        from_arrays(bad_x(np.empty((0, 3))))
    with refused("client 'lima': X[1] has shape (2,), own: client 'lima': X[0] (3,)", "one shape"):
        from_arrays(bad_x([[1, 2, 3], [1, 2]]))
    with refused("client 'lima': X[1] has shape (2, 2)", "one shape"):
        from_arrays(bad_x([torch.zeros(3, 3), torch.zeros(2, 2)]))
    with refused("client 'lima': X[1] has shape of its own, ragged", "one shape"):
        from_arrays(bad_x([[[1, 2], [3, 4]], [[1, 2], [3]]]))
    with refused("client 'lima': X[0, 1] is 'red', not a number", "encode it"):
        from_arrays(bad_x([[1.0, "red"], [2.0, "blue"]]))
    with refused("client 'lima': X[1, 0] is None, not a number"):
        from_arrays(bad_x([[1.0, 2.0], [None, 3.0]]))
    with refused("X[0, 0] is (1+2j), not a number"):
        from_arrays(bad_x(np.array([[1 + 2j], [3]])))
    for value, word in ((np.nan, "nan"), (-np.inf, "-inf"), (1e300, "1e+300")):
        x = rows()
        x[4, 2] = value
        with refused(f"client 'lima': X[4, 2] is {word}", "finite", "leave out the row or column"):
            from_arrays(bad_x(x))
    with refused("client 'lima': X has masked"):
        from_arrays(bad_x(np.ma.masked_less(rows(), 3)))
    with refused("training data of client 'lima'", "(4,)", "(3,)", "one shape"):
        from_arrays(bad_x(rows(d=4)))


def test_wrong_pixels() -> None:
    with refused("client 'lima': X has shape (2, 5, 6, 4)", "neither 1 nor 3 channels", "X[..., :3]"):
        from_arrays(bad_x(np.zeros((2, 5, 6, 4), dtype=np.uint8)))
    x = np.zeros((2, 5, 6))
    x[1, 0, 0] = 7.5
    with refused("client 'lima': X[1] has a pixel 7.5", "0..1", "integers 0..255"):
        from_arrays(bad_x(x))
    x[1, 0, 0] = np.nan
    with refused("client 'lima': X[1] has a pixel nan"):
        from_arrays(bad_x(x))
    with refused("client 'lima': X[0] has a pixel 256", "0..255"):
        from_arrays(bad_x(np.full((2, 5, 6), 256)))
    with refused("X has type bool", "integers 0..255"):
        from_arrays(bad_x(np.zeros((2, 5, 6), dtype=bool)))


def test_wrong_y() -> None:
    with refused("client 'lima': X has 10 samples, y 9 labels", "one label per sample"):
        from_arrays(bad_y([0] * 9))
    with refused("client 'lima': y has shape (10, 2)", "y.argmax(1)"):
        from_arrays(bad_y(np.eye(2)[np.arange(10) % 2]))
    for value, word in ((0.5, "0.5"), (float("nan"), "nan"), (float("inf"), "inf"), (None, "None"), ("", "''")):
        with refused(f"client 'lima': y[3] is {word}, not a class", "whole numbers or text"):
            from_arrays(bad_y([0, 1, 0, value] + [0] * 6))
    with refused("client 'lima': y[2]: label 'cat' is text", "that of own: client 'oslo': y[0] is a whole number"):
        from_arrays(bad_y([0, 1, "cat"] + [0] * 7))
    with refused("every sample has the label 4", "add samples of another class"):
        from_arrays({"oslo": (rows(), [4] * 10), "lima": (rows(), [4] * 10)})


def test_wrong_test_data() -> None:
    with refused("test data of client 'lima': y[9]: label 7 is not one of the classes (0, 1)", "correct it"):
        from_arrays(two(), test=bad_y([0] * 9 + [7]))
    with refused("test data for client 'limo'", "did you mean 'lima'?"):
        from_arrays(two(), test={"oslo": pair(), "limo": pair()})
    with refused("client 'lima' has no test data", "leave test out"):
        from_arrays(two(quito=pair()), test={"oslo": pair(), "quito": pair()})
    with refused("test data of client 'lima': X has shape (0, 3)"):
        from_arrays(two(), test=bad_x(np.empty((0, 3))))
    with refused("test data of client 'lima'", "(4,)"):
        from_arrays(two(), test=bad_x(rows(d=4)))


def test_too_few_to_split() -> None:
    with refused("client 'lima' has too few samples (1)", "test_fraction=0.3", "give it more"):
        from_arrays(two(lima=pair(1)))


def test_wrong_classes_and_columns() -> None:
    with refused("client 'oslo': y[1]: label 1 is not one of the classes (0)", "add it to classes"):
        from_arrays(two(), classes=["no"])
    y = ["cat", "dog"] * 5
    with refused("label 'dog' is not one of the classes (cat, dogs); did you mean 'dogs'?", "add it to classes"):
        from_arrays({"oslo": pair_of(y), "lima": pair_of(y)}, classes=["cat", "dogs"])
    for classes in ("ab", ["a", "a"], ["a", ""], [0, 1]):
        with refused("classes=", "distinct names"):
            from_arrays(two(), classes=classes)  # type: ignore[arg-type]
    with refused("columns=['a', 'b']", "give 3 distinct names"):
        from_arrays(two(), columns=["a", "b"])
    with refused("columns=['a', 'b', 'a']", "distinct"):
        from_arrays(two(), columns=["a", "b", "a"])
    x = pictures()
    with refused("columns are for rows", "leave columns out"):
        from_arrays({"a": (x, [0, 1] * 3), "b": (x, [0, 1] * 3)}, columns=["a"])


def test_long_values_are_shortened() -> None:
    with pytest.raises(FeddrmError) as caught:
        from_arrays(bad_y([0] * 9 + ["x\n" * 5000]))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    with refused("client 'lima' is array([[", "give a pair"):
        from_arrays(two(lima=np.arange(10.0).reshape(5, 2)))


class Frame:
    """What a data frame is to us: columns with names, and an array when asked."""

    def __init__(self, values: np.ndarray, columns: list[Any]) -> None:
        self.values, self.columns = values, columns

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.values


def frames(first: list[Any], second: list[Any]) -> dict[str, Any]:
    return {n: (Frame(x, c), y) for (n, (x, y)), c in zip(two().items(), (first, second), strict=True)}


def test_data_frames_bring_their_names_and_agree_on_the_order() -> None:
    fed = from_arrays(frames(["age", "chol", 3], ["age", "chol", 3]))
    assert fed.columns == ("age", "chol", "3")
    assert from_arrays(frames(["a", "b", "c"], ["a", "b", "c"]), columns=["u", "v", "w"]).columns == ("u", "v", "w")
    for other in (["chol", "age", "ca"], ["age", "chol", "thal"]):
        with refused("client 'lima' has the columns", "client 'oslo' age, chol, ca", "in the same order"):
            from_arrays(frames(["age", "chol", "ca"], other))
        with refused("client 'lima' has the columns"):  # names of one's own do not put the order right
            from_arrays(frames(["age", "chol", "ca"], other), columns=["u", "v", "w"])
    with refused("client 'oslo' has the columns b, a, c"):
        from_arrays(frames(["a", "b", "c"], ["a", "b", "c"]), test=frames(["b", "a", "c"], ["a", "b", "c"]))


def test_classes_that_only_look_different_are_refused() -> None:
    pairs = {n: (rows(4), y) for n, y in (("oslo", ["Ill", "well"] * 2), ("lima", ["ill", "well"] * 2))}
    with refused("own: the classes 'Ill' and 'ill' differ in upper and lower case or spaces alone", "spell them alike"):
        from_arrays(pairs)
    with refused("'very ill' and 'very ill '"):
        from_arrays({n: (rows(4), y) for n, y in (("oslo", ["very ill", "w"] * 2), ("lima", ["very ill ", "w"] * 2))})
    assert from_arrays(pairs, classes=["ill", "Ill", "well"]).counts().tolist() == [[0, 2, 2], [2, 0, 2]]
    letters = {n: (rows(4), list("aAbB")) for n in ("oslo", "lima")}
    assert from_arrays(letters).classes == ("A", "B", "a", "b")


def test_one_letter_in_one_character_or_in_two_is_one_letter() -> None:
    one, other = "k\u00f6", "ko\u0308"
    pairs = {n: (rows(4), ["a", y] * 2) for n, y in (("oslo", one), ("lima", other))}
    assert from_arrays(pairs).classes == ("a", one)
    assert from_arrays(pairs, classes=[other, "a"]).counts().tolist() == [[2, 2], [2, 2]]
    with refused("duplicate client name"):
        from_arrays({one: pair(), other: pair()})


def test_masks_of_integers_are_refused() -> None:
    masks = {n: (np.tile(np.eye(4, dtype=int), (10, 1, 1)), np.arange(10) % 2) for n in ("oslo", "lima")}
    with refused("own: no pixel is brighter than 1 of 255", "floats 0..1"):
        from_arrays(masks)
    assert from_arrays({n: (x.astype(float), y) for n, (x, y) in masks.items()}).clients[0].train.x.max() == 255
    assert from_arrays(masks | {"oslo": (2 * masks["oslo"][0], masks["oslo"][1])}).clients[0].train.x.max() == 2
    from_arrays({n: (0 * x, y) for n, (x, y) in masks.items()})  # black is black


def test_what_is_no_number_no_fraction_and_no_client() -> None:
    with refused("X[0, 0] is", "not a number"):
        from_arrays(bad_x(np.arange(10).astype("m8[s]")[:, None]))
    for fraction in ("0.3", None, 2, float("nan")):
        with refused("test_fraction=", "give a fraction between 0 and 1"):
            from_arrays(two(), test_fraction=fraction)  # type: ignore[arg-type]
    for seed in (1.5, None, "1", -1, 2**32):
        with refused("is out of range: give a whole number"):
            from_arrays(two(), seed=seed)  # type: ignore[arg-type]
    for nothing in (None, 5):
        with refused(f"own: {nothing} holds no clients", "(X, y)"):
            from_arrays(nothing)  # type: ignore[arg-type]
    with refused("columns='abc'", "3 distinct names"):
        from_arrays(two(), columns="abc")
    with refused("client 'lima' has no test data"):
        from_arrays(two(), test={"oslo": pair()})
    with refused("a client has test data twice"):
        from_arrays(two(), test=[("oslo", pair()), ("lima", pair()), ("oslo", pair())])
