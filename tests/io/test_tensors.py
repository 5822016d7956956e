"""Tensors in files: every type and shape is read back, slots keep their leaves, broken files are one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor

from feddrm.io.tensors import copied_in_groups, join_slots, read_tensors, split_slots, tensor_bytes
from refusal import refused

REMEDY = "restore the file"
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.uint8, torch.int64, torch.bool]

# A leaf may have a slash in its name, a slot may not.
slots = st.dictionaries(
    st.text("abc_", min_size=1, max_size=4),
    st.dictionaries(st.text("abc./", max_size=4), st.integers(0, 5).map(torch.tensor), max_size=3),
    max_size=4,
)


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.safetensors"


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_and_shape_is_read_back(dtype: torch.dtype, path: Path) -> None:
    tensors = {
        "matrix": torch.arange(6).view(2, 3).to(dtype),
        "scalar": torch.tensor(1).to(dtype),
        "empty": torch.empty(0, 4, dtype=dtype),
        "transposed": torch.arange(6).view(2, 3).to(dtype).t(),
    }
    path.write_bytes(tensor_bytes(tensors))
    result = read_tensors(path, REMEDY)
    assert result.keys() == tensors.keys()
    assert all(same(result[name], tensors[name]) for name in tensors)


def test_no_tensors_at_all_are_read_back(path: Path) -> None:
    path.write_bytes(tensor_bytes({}))
    assert read_tensors(path, REMEDY) == {}


def test_tensors_that_share_memory_are_read_back_apart(path: Path) -> None:
    whole = torch.arange(6.0)
    path.write_bytes(tensor_bytes({"whole": whole, "alias": whole, "half": whole[:3]}))
    result = read_tensors(path, REMEDY)
    assert same(result["alias"], whole)
    assert same(result["half"], whole[:3])
    result["whole"].zero_()
    assert same(result["alias"], whole)


def test_a_tensor_with_a_gradient_is_written(path: Path) -> None:
    path.write_bytes(tensor_bytes({"w": torch.ones(2, requires_grad=True)}))
    assert same(read_tensors(path, REMEDY)["w"], torch.ones(2))


def test_metadata_is_written(path: Path) -> None:
    path.write_bytes(tensor_bytes({"w": torch.ones(2)}, {"round": "3"}))
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"round": "3"}


def test_the_same_tensors_give_the_same_bytes() -> None:
    tensors = {"b": torch.ones(2), "a": torch.zeros(3)}
    assert tensor_bytes(tensors) == tensor_bytes(dict(reversed(tensors.items())))


@pytest.mark.parametrize("most", [1, 40, 10**6])
def test_tensors_are_copied_in_groups(most: int) -> None:
    tensors = {
        "matrix": torch.arange(12.0).view(3, 4).t(),
        "scalar": torch.tensor(2.5),
        "count": torch.arange(3),
        "picture": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "empty": torch.empty(0, 4),
        "last": torch.ones(2, dtype=torch.bfloat16),
    }
    copies = copied_in_groups(tensors, most)
    assert copies.keys() == tensors.keys()
    assert all(same(copies[name], tensors[name]) and copies[name].is_contiguous() for name in tensors)
    shared = {copies[name].untyped_storage().data_ptr() for name in ("matrix", "scalar", "picture")}
    assert len(shared) == {1: 3, 40: 2, 10**6: 1}[most]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_tensors_of_a_gpu_give_the_same_bytes() -> None:
    tensors = {"b": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), "a": torch.arange(3)}
    assert tensor_bytes({name: value.cuda() for name, value in tensors.items()}) == tensor_bytes(tensors)


def test_files_that_cannot_be_read_are_refused(path: Path) -> None:
    with refused(f"cannot read {path} (No such file or directory): {REMEDY}"):
        read_tensors(path, REMEDY)
    whole = tensor_bytes({"w": torch.ones(100)})
    for content in (b"", b"{}", whole[:20], whole[:-1], whole + b"\0"):
        path.write_bytes(content)
        with refused(f"{path} is broken (not safetensors, ", f"): {REMEDY}"):
            read_tensors(path, REMEDY)


@given(slots)
def test_slots_are_split_as_they_were_joined(state: dict[str, dict[str, Tensor]]) -> None:
    result = split_slots(join_slots(state), slots=state)
    assert result == state
    assert list(result) == list(state)


def test_an_empty_slot_is_lost_unless_it_is_named() -> None:
    state = {"shared": {}, "model": {"head.weight": torch.ones(1)}}
    assert list(join_slots(state)) == ["model/head.weight"]
    assert list(split_slots(join_slots(state))) == ["model"]
    assert split_slots(join_slots(state), slots=("shared",))["shared"] == {}


def test_slots_in_a_file_are_read_back(path: Path) -> None:
    weight = torch.arange(4.0)
    state = {"model": {"w": weight, "b": weight[:2]}, "prev": {"w": weight}, "mix": {}}
    path.write_bytes(tensor_bytes(join_slots(state)))
    result = split_slots(read_tensors(path, REMEDY), slots=state)
    assert {slot: sorted(leaves) for slot, leaves in result.items()} == {"model": ["b", "w"], "prev": ["w"], "mix": []}
    assert same(result["prev"]["w"], weight)
    assert same(result["model"]["b"], weight[:2])
