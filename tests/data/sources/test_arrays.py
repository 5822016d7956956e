"""Samples from arrays, tensors, lists and data frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from feddrm.data import Federation
from feddrm.data.partition import split
from feddrm.data.sources.arrays import client_from_arrays
from feddrm.data.sources.labelled_samples import Division
from refusal import refused

from_arrays = Federation.from_arrays


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


# Rows


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


def test_the_federation_says_where_it_came_from() -> None:
    fed = from_arrays(two(), name="mine", seed=3, test_fraction=0.5)
    assert (fed.name, fed.source, fed.columns) == ("mine", "arrays given in Python", ("x0", "x1", "x2"))
    assert fed.settings == {"test": "split", "test_fraction": 0.5, "seed": 3}
    assert from_arrays(two(), test=two()).settings == {"test": "given"}
    assert from_arrays(two(), columns=["age", "chol", "ca"]).columns == ("age", "chol", "ca")


def test_rows_reach_the_network_as_given() -> None:
    fed = from_arrays(two())
    x = fed.clients[1].train.x
    assert torch.equal(fed.clients[1].view(x), x)


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


# Errors


def test_wrong_clients_are_refused() -> None:
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
    for nothing in (None, 5):
        with refused(f"own: {nothing} holds no clients", "(X, y)"):
            from_arrays(nothing)  # type: ignore[arg-type]


def test_wrong_x_is_refused() -> None:
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
    with refused("client 'lima': X[1, 0] is 1000", "not a finite 32-bit number"):
        from_arrays(bad_x([[1, 2, 3], [10**400, 2, 3]]))
    with refused("client 'lima': X has masked"):
        from_arrays(bad_x(np.ma.masked_less(rows(), 3)))
    with refused("training data of client 'lima'", "(4,)", "(3,)", "one shape"):
        from_arrays(bad_x(rows(d=4)))


def test_wrong_pixels_are_refused() -> None:
    with refused("client 'lima': X has shape (2, 5, 6, 4)", "neither 1 nor 3 channels", "X[..., :3]"):
        from_arrays(bad_x(np.zeros((2, 5, 6, 4), dtype=np.uint8)))
    x = np.zeros((2, 5, 6))
    x[1, 0, 0] = 7.5
    with refused("client 'lima': X[1] has a pixel 7.5", "0..1", "integers 0..255", "X.reshape(len(X), -1)"):
        from_arrays(bad_x(x))
    x[1, 0, 0] = np.nan
    with refused("client 'lima': X[1] has a pixel nan"):
        from_arrays(bad_x(x))
    with refused("client 'lima': X[0] has a pixel 256", "0..255"):
        from_arrays(bad_x(np.full((2, 5, 6), 256)))
    with refused("X has type bool", "integers 0..255"):
        from_arrays(bad_x(np.zeros((2, 5, 6), dtype=bool)))


def test_wrong_y_is_refused() -> None:
    with refused("client 'lima': X has 10 samples, y 9 labels", "one label per sample"):
        from_arrays(bad_y([0] * 9))
    with refused("client 'lima': y has shape (10, 2)", "y.argmax(1)"):
        from_arrays(bad_y(np.eye(2)[np.arange(10) % 2]))
    for value, word in ((0.5, "0.5"), (float("nan"), "nan"), (float("inf"), "inf"), (None, "None"), ("", "''")):
        with refused(f"client 'lima': y[3] is {word}, not a class", "whole numbers or text"):
            from_arrays(bad_y([0, 1, 0, value] + [0] * 6))


def test_wrong_test_data_are_refused() -> None:
    with refused("client 'lima' has no test data"):
        from_arrays(two(), test={"oslo": pair()})
    with refused("a client has test data twice"):
        from_arrays(two(), test=[("oslo", pair()), ("lima", pair()), ("oslo", pair())])
    with refused("test data of client 'lima': X has shape (0, 3)"):
        from_arrays(two(), test=bad_x(np.empty((0, 3))))
    with refused("test data of client 'lima'", "(4,)"):
        from_arrays(two(), test=bad_x(rows(d=4)))


def test_wrong_columns_are_refused() -> None:
    with refused("columns=['a', 'b']", "give 3 distinct names"):
        from_arrays(two(), columns=["a", "b"])
    with refused("columns='abc'", "3 distinct names"):
        from_arrays(two(), columns="abc")
    with refused("columns=['a', 'b', 'a']", "distinct"):
        from_arrays(two(), columns=["a", "b", "a"])
    x = pictures()
    with refused("columns are for rows", "leave columns out"):
        from_arrays({"a": (x, [0, 1] * 3), "b": (x, [0, 1] * 3)}, columns=["a"])


class Frame:
    """The part of a data frame that is used here: column names, and conversion to an array."""

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
    assert from_arrays(frames(["ö", "b", "c"], ["o\u0308", "b", "c"])).columns == ("ö", "b", "c")
    for other in (["chol", "age", "ca"], ["age", "chol", "thal"]):
        with refused("client 'lima' has the columns", "client 'oslo' age, chol, ca", "in the same order"):
            from_arrays(frames(["age", "chol", "ca"], other))
        with refused("client 'lima' has the columns"):  # names of one's own do not put the order right
            from_arrays(frames(["age", "chol", "ca"], other), columns=["u", "v", "w"])
    with refused("client 'oslo' has the columns b, a, c"):
        from_arrays(frames(["a", "b", "c"], ["a", "b", "c"]), test=frames(["b", "a", "c"], ["a", "b", "c"]))


def test_masks_of_integers_are_refused() -> None:
    masks = {n: (np.tile(np.eye(4, dtype=int), (10, 1, 1)), np.arange(10) % 2) for n in ("oslo", "lima")}
    with refused("own: no pixel is brighter than 1 of 255", "floats 0..1"):
        from_arrays(masks)
    assert from_arrays({n: (x.astype(float), y) for n, (x, y) in masks.items()}).clients[0].train.x.max() == 255
    assert from_arrays(masks | {"oslo": (2 * masks["oslo"][0], masks["oslo"][1])}).clients[0].train.x.max() == 2
    from_arrays({n: (0 * x, y) for n, (x, y) in masks.items()})  # black is black


def test_durations_are_not_numbers() -> None:
    with refused("X[0, 0] is", "not a number"):
        from_arrays(bad_x(np.arange(10).astype("m8[s]")[:, None]))


def test_a_client_alone_is_the_first_client_of_a_federation() -> None:
    alone = client_from_arrays("oslo", pair(), ("0", "1"), Division(0.3, 2025))
    first = from_arrays(two(), classes=["0", "1"]).clients[0]
    for mine, theirs in ((alone.train, first.train), (alone.test, first.test)):
        assert torch.equal(mine.x, theirs.x)
        assert torch.equal(mine.y, theirs.y)


def test_a_client_alone_with_a_label_of_no_class_is_refused() -> None:
    with refused("label 'c' is not one of the classes"):
        client_from_arrays("oslo", (rows(4), list("abac")), ("a", "b"), Division(0.3, 2025))
