"""A federation: sizes, weights, counts, checksum, and the checks of its splits."""

from __future__ import annotations

import inspect
import json
import textwrap
import tracemalloc
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddrm.data import Client, Federation, Split, View, load
from feddrm.router.row_checks import RowChecks
from feddrm.router.solver.problem import Scaler
from feddrm.tables.column_kinds import NumberColumn
from feddrm.tables.table_schema import TableSchema
from refusal import refused


def part(*labels: int, shape: tuple[int, ...] = (2,), dtype: torch.dtype = torch.float32) -> Split:
    return Split(torch.zeros((len(labels), *shape), dtype=dtype), torch.tensor(labels, dtype=torch.int64))


def client(name: str, **changed: Any) -> Client:
    return Client(name, **{"train": part(0, 1, 1), "test": part(0)} | changed)


def federation(*clients: Client, **changed: Any) -> Federation:
    options = {"name": "toy", "clients": clients, "classes": ("no", "yes", "maybe"), "source": "made here"}
    return Federation(**options | changed)


@pytest.fixture
def fed() -> Federation:
    lima = client("lima", train=part(1), test=part(2, 2), shift="gamma 0.6")
    return federation(client("oslo"), lima, settings={"seed": 0})


def test_sizes_weights_counts(fed: Federation) -> None:
    assert len(fed) == 2
    assert fed.names == ("oslo", "lima")
    assert fed.shape == (2,)
    assert fed.sizes.tolist() == [3, 1]
    assert fed.weights.dtype == torch.float64
    assert fed.weights.tolist() == [0.75, 0.25]
    assert fed.counts("train").tolist() == [[1, 2, 0], [0, 1, 0]]
    assert fed.counts("test").tolist() == [[1, 0, 0], [0, 0, 2]]
    assert fed.counts().tolist() == [[2, 2, 0], [0, 1, 2]]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=2, max_size=6))
def test_weights_sum_to_one_and_counts_to_sizes(labels: list[list[int]]) -> None:
    fed = federation(*(client(f"c{i}", train=part(*y)) for i, y in enumerate(labels)))
    assert fed.weights.sum().item() == pytest.approx(1, abs=1e-12)
    assert torch.equal(fed.counts("train").sum(1), fed.sizes)
    assert torch.equal(fed.counts("train") + fed.counts("test"), fed.counts())


def test_describe_is_plain_and_complete(fed: Federation) -> None:
    assert json.loads(json.dumps(fed.describe())) == {
        "name": "toy",
        "source": "made here",
        "settings": {"seed": 0},
        "sample_shape": [2],
        "classes": ["no", "yes", "maybe"],
        "clients": [
            {"name": "oslo", "train": 3, "test": 1, "shift": "none", "class_counts": [2, 2, 0]},
            {"name": "lima", "train": 1, "test": 2, "shift": "gamma 0.6", "class_counts": [0, 1, 2]},
        ],
        "train": 4,
        "test": 3,
    }


def devices(*clients: Client) -> set[str]:
    return {tensor.device.type for c in clients for s in (c.train, c.test) for tensor in (s.x, s.y)}


def test_to_keeps_all_but_the_device() -> None:
    view = View(mean=(0.1,), std=(0.2,))
    here = federation(client("oslo", view=view, shift="dim"), client("lima"), columns=("a", "b"), settings={"seed": 1})
    there = here.to("cpu")
    assert (there.names, there.classes, there.columns, there.settings) == (
        here.names,
        here.classes,
        here.columns,
        here.settings,
    )
    assert (there.clients[0].view, there.clients[0].shift) == (view, "dim")
    assert torch.equal(there.clients[0].train.y, here.clients[0].train.y)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_to_a_gpu(fed: Federation) -> None:
    there = fed.to("cuda")
    assert devices(*there.clients) == {"cuda"}
    assert there.counts().tolist() == fed.counts().tolist()


def test_a_federation_cannot_be_changed(fed: Federation) -> None:
    with pytest.raises(FrozenInstanceError):
        fed.name = "other"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        fed.clients[0].train.x = torch.zeros(1)  # type: ignore[misc]


def test_client_names_are_checked() -> None:
    for clients in ((), (client("oslo"),)):
        with refused("toy", f"at least two clients, got {len(clients)}", "add another"):
            federation(*clients)
    with refused("duplicate client name 'OSLO'", "also 'oslo'", "rename"):
        federation(client("oslo"), client("OSLO"))


def test_splits_that_do_not_fit_are_refused() -> None:
    good = client("oslo")
    wrong = "toy: test data of client 'lima'"
    with refused(wrong, "is empty", "more samples"):
        federation(good, client("lima", test=part()))
    with refused("toy: training data of client 'lima'", "has 3 samples but 2 labels"):
        federation(good, client("lima", train=Split(torch.zeros(3, 2), torch.tensor([0, 1]))))
    with refused(wrong, "(4,)", "(2,)", "bring all to one shape"):
        federation(good, client("lima", test=part(0, shape=(4,))))
    with refused(wrong, "torch.uint8", "torch.float32"):
        federation(good, client("lima", test=part(0, dtype=torch.uint8)))
    with refused(wrong, "label 3, outside the 3 classes"):
        federation(good, client("lima", test=part(0, 3)))
    with refused(wrong, "label -1, outside"):
        federation(good, client("lima", test=part(0, -1)))


def test_the_first_client_is_checked_as_well() -> None:
    with refused("toy: training data of client 'oslo'", "is empty"):
        federation(client("oslo", train=part()), client("lima"))
    with refused("toy: test data of client 'oslo'", "(5,)"):
        federation(client("oslo", test=part(0, shape=(5,))), client("lima"))


def test_replace_checks_again(fed: Federation) -> None:
    with refused("label 2, outside the 2 classes"):
        replace(fed, classes=("no", "yes"))


def test_the_checksum_tells_shapes_apart() -> None:
    def digest(height: int, width: int) -> str:
        images = torch.arange(128, dtype=torch.uint8).view(8, 1, height, width)
        return Federation.from_arrays({n: (images, [0, 1] * 4) for n in ("oslo", "lima")}).digest()

    assert digest(4, 4) != digest(2, 8)
    assert digest(4, 4) == digest(4, 4)


def test_unknown_options_of_the_sources_are_refused() -> None:
    for make, data in ((Federation.from_arrays, {}), (Federation.from_folders, "x"), (Federation.from_csv, "x")):
        with pytest.raises(TypeError, match="sede"):
            make(data, sede=1)  # type: ignore[operator]


def table(*columns: tuple[str, float], **options: Any) -> Federation:
    """Rows of two clients; every column has a name and a standard deviation."""
    x = np.random.default_rng(0).normal(0, [scale for _, scale in columns], (40, len(columns)))
    y = np.arange(40) % 2
    return Federation.from_arrays({"oslo": (x, y), "lima": (x, y)}, columns=[name for name, _ in columns], **options)


def test_columns_of_very_different_scales_are_warned_of() -> None:
    assert table(("age", 1), ("dose", 90)).scale_warning() is None
    assert table(("age", 1), ("constant", 0)).scale_warning() is None
    warning = table(("age", 1), ("dose", 300), ("constant", 0)).scale_warning()
    assert warning is not None
    for part in ("'dose' has a standard deviation of 254", "'age' a standard dev", "feddrm data schema", "schema.yaml"):
        assert part in warning
    assert load("digits", clients=3, seed=3).scale_warning() is None


@pytest.mark.parametrize("year", [np.arange(1990, 2030), np.full(40, 1e15)])
def test_a_column_far_from_zero_is_warned_of(year: np.ndarray) -> None:
    """Years of 2000 among deviations of 1 end in one answer to all queries, and so does a constant that large."""
    x = np.random.default_rng(0).normal(0, 1, (40, 2))
    x[:, 1] = year
    data = {"oslo": (x, np.arange(40) % 2), "lima": (x, np.arange(40) % 2)}
    (warning,) = Federation.from_arrays(data, columns=["dose", "year"]).warnings()
    assert "column 'year' has a mean of " in warning
    assert "'dose' a standard deviation of" in warning


def test_values_that_the_router_would_flag_are_warned_of() -> None:
    fed = table(("age", 1), ("dose", 1))
    assert fed.warnings() == []
    x = np.concatenate([client.train.x for client in fed.clients] * 4)
    x[[3, 5], 1] = 40.0
    y = np.arange(len(x)) % 2
    data = {"oslo": (x, y), "lima": (x, y)}
    far = Federation.from_arrays(data, test=data, columns=["age", "dose"])
    pooled = torch.cat([client.train.x for client in far.clients]).double()
    flagged = RowChecks(None, far.columns, Scaler(pooled.mean(0), pooled.std(0, correction=0)))
    assert [problem.column for problem in flagged(torch.from_numpy(x))] == ["dose", "dose"]
    (warning,) = far.warnings()
    assert "more than 8 standard deviations from the mean: 'dose' (4, such as 40). The router will give" in warning
    declared = TableSchema((NumberColumn("age"), NumberColumn("dose", minimum=-9, maximum=99)))
    assert replace(far, schema=declared).warnings() == []


def test_warnings_need_little_memory_beside_the_federation(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    data = {f"c{i}": (rng.normal(3, 2, (500 + i, 40)).astype(np.float32), np.arange(500 + i) % 2) for i in range(20)}
    data["c7"][0][3, 5] = 900.0
    fed = Federation.from_arrays(data, test=data)
    whole = fed.warnings()
    monkeypatch.setattr("feddrm.data.federation.BLOCK", 300, raising=False)
    fed = replace(fed)
    tracemalloc.start()
    assert fed.warnings() == whole
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < sum(client.train.x.nbytes for client in fed.clients)
    assert "'x5' (1, such as 900)" in whole[0]


def test_a_schema_must_be_that_of_the_columns() -> None:
    fed, schema = table(("age", 1), ("dose", 300)), TableSchema((NumberColumn("age"), NumberColumn("dose")))
    assert replace(fed, schema=schema).scale_warning() is None
    with refused("its columns are not those of its schema"):
        replace(fed, schema=TableSchema((NumberColumn("age"),)))


def test_the_help_of_from_arrays_has_an_example_that_runs() -> None:
    text = inspect.getdoc(Federation.from_arrays) or ""
    example = text.split("Example::\n\n")[1].split("\n\n")[0]
    found = {"np": np, "Federation": Federation}
    exec(textwrap.dedent(example), found)
    assert found["fed"].names == ("oslo", "lima")
    assert found["fed"].columns == ("age", "dose", "a", "b", "c")
    for option in ("test", "test_fraction", "seed", "classes", "columns", "name"):
        assert f"``{option}``" in text
