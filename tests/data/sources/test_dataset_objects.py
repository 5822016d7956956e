"""Samples from dataset objects of other libraries: the real Hugging Face and Flower classes, and FLamby's form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset

from feddrm.data import Federation
from refusal import refused

datasets = pytest.importorskip("datasets")
partitioners = pytest.importorskip("flwr_datasets.partitioner")


@pytest.fixture
def table() -> Any:
    rows = range(24)
    columns = {"age": [float(i) for i in rows], "dose": [i % 5 for i in rows], "ill": [i % 2 for i in rows]}
    data = datasets.Dataset.from_dict({**columns, "town": [("oslo", "lima")[i % 3 == 0] for i in rows]})
    return data.cast_column("ill", datasets.ClassLabel(names=["well", "ill"]))


def test_a_dataset_with_a_client_column(table: Any) -> None:
    fed = Federation.from_dataset(table, inputs=["age", "dose"], label="ill", client="town", seed=3)
    assert (fed.names, fed.classes, fed.columns) == (("lima", "oslo"), ("well", "ill"), ("age", "dose"))
    assert fed.source == "a Dataset given in Python"
    ages = np.arange(0, 24, 3)
    arrays = {"lima": (np.stack([ages, ages % 5], 1).astype(float), (ages % 2).tolist())}
    others = np.array([i for i in range(24) if i % 3])
    arrays["oslo"] = (np.stack([others, others % 5], 1).astype(float), (others % 2).tolist())
    assert fed.clients[0].train.x.tolist() == Federation.from_arrays(arrays, seed=3).clients[0].train.x.tolist()


def test_one_dataset_per_client_with_test_data_and_images() -> None:
    pixels = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    features = datasets.Features({"picture": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})

    def part() -> Any:
        from PIL import Image

        return datasets.Dataset.from_dict(
            {"picture": [Image.fromarray(p) for p in pixels], "label": [0, 1]}, features=features
        )

    fed = Federation.from_dataset(
        {"oslo": part(), "lima": part()}, inputs="picture", label="label", test={"oslo": part(), "lima": part()}
    )
    assert (fed.shape, fed.classes) == ((3, 4, 4), ("cat", "dog"))
    assert torch.equal(fed.clients[0].train.x, torch.from_numpy(pixels).permute(0, 3, 1, 2))


def test_a_partitioner_of_flower(table: Any) -> None:
    partitioner = partitioners.IidPartitioner(num_partitions=3)
    partitioner.dataset = table
    fed = Federation.from_dataset(partitioner, inputs=["age", "dose"], label="ill", test_fraction=0.25)
    assert fed.names == ("client0", "client1", "client2")
    assert fed.sizes.tolist() == [6, 6, 6]


class Made(TorchDataset[Any]):
    """As FLamby's datasets: a class that is called with a centre, and says which part it is."""

    def __init__(self, center: int, train: bool, pooled: bool) -> None:
        assert not pooled
        self.x = torch.full((4 if train else 2, 3), float(center))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[i], torch.tensor([i % 2], dtype=torch.float32)


def test_a_flamby_class() -> None:
    fed = Federation.from_flamby(Made, centers=2)
    assert (fed.name, fed.names, fed.classes) == ("Made", ("center0", "center1"), ("0", "1"))
    assert fed.clients[1].train.x.tolist() == [[1.0] * 3] * 4
    assert [len(client.test) for client in fed.clients] == [2, 2]


def test_wrong_columns_and_clients_are_refused(table: Any) -> None:
    with refused("the dataset has no column 'agee' for an input; did you mean 'age'?"):
        Federation.from_dataset(table, inputs=["agee"], label="ill", client="town")
    with refused("client 'lima': column 'town' holds text: encode it, or leave it out"):
        Federation.from_dataset(table, inputs=["age", "town"], label="ill", client="town")
    with refused("the dataset has no column 'sick' for the label"):
        Federation.from_dataset(table, inputs=["age"], label="sick", client="town")
    with refused("one dataset has one client", "client=..."):
        Federation.from_dataset(table, inputs=["age"], label="ill")
    ragged = datasets.Dataset.from_dict({"x": [[1.0], [1.0, 2.0]], "y": [0, 1]})
    with refused("client 'a': column 'x' has samples of several shapes"):
        Federation.from_dataset({"a": ragged}, inputs="x", label="y")


def test_arrays_in_the_place_of_datasets_are_refused() -> None:
    with refused("client 'oslo' has a tuple: give a Dataset, or use from_arrays or from_csv"):
        Federation.from_dataset({"oslo": (np.zeros((4, 2)), [0, 1, 0, 1])}, inputs="x", label="y")
