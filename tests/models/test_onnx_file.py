"""Frozen networks in ONNX files: what they compute, what travels, and which files are refused."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto
from torch.func import functional_call

from feddrm.errors import FeddrmError
from feddrm.models import Onnx
from onnx_files import extractor_weight, write_extractor
from refusal import refused

SHAPE = (1, 8, 8)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_extractor(tmp_path / "extractor.onnx")


def test_features_are_those_of_the_file(file: Path):
    net = Onnx(path=str(file)).build(SHAPE, classes=3, clients=2)
    x = torch.randn(7, *SHAPE)
    expected = np.maximum(x.flatten(1).numpy() @ extractor_weight(), 0)
    np.testing.assert_allclose(net.embed(x)[0].numpy(), expected, rtol=1e-4, atol=1e-5)
    assert net(x).logits.shape == (7, 3)


def test_path_width_and_checksum_are_filled_in(file: Path, monkeypatch):
    monkeypatch.chdir(file.parent)
    model = Onnx(path=file.name).resolved(SHAPE)
    assert model == Onnx(path=str(file), width=12, sha256=hashlib.sha256(file.read_bytes()).hexdigest())
    assert model.resolved(SHAPE) is model


def test_the_bytes_are_a_leaf_so_that_the_file_is_not_needed_again(file: Path):
    model = Onnx(path=str(file)).resolved(SHAPE)
    net = model.build(SHAPE, classes=3)
    x = torch.randn(4, *SHAPE)
    expected = net.embed(x)[0]
    leaves = {leaf: value.detach().clone() for leaf, value in net.named_parameters()}
    assert leaves["trunk.embedding.content"].numpy().tobytes() == file.read_bytes()
    file.unlink()
    later = model.build(SHAPE, classes=3)
    with refused("the run's extractor", "export it again"):
        later.embed(x)
    assert torch.equal(functional_call(later, leaves, (x,)).features, expected)
    assert torch.equal(copy.deepcopy(net).embed(x)[0], expected)


def test_the_file_is_opened_once(file: Path, monkeypatch):
    import feddrm.models.onnx_file as module

    net = Onnx(path=str(file)).build(SHAPE, classes=3)
    opened = []
    monkeypatch.setattr(module, "_open", lambda *words, real=module._open: opened.append(1) or real(*words))
    for _ in range(3):
        net.embed(torch.randn(2, *SHAPE))
    assert len(opened) == 1


def test_random_features_follow_the_extractor(file: Path):
    net = Onnx(path=str(file), features=5).build(SHAPE, classes=3)
    assert net.embed(torch.randn(2, *SHAPE))[0].shape == (2, 5)


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"shape": (3, 8, 8)}, ("'x' of tensor(float) ['n', 3, 8, 8]", "[batch, 1, 8, 8]", "data.size")),
        ({"shape": (64,)}, ("['n', 64]", "export it with")),
        ({"batch": 1}, ("[1, 1, 8, 8]", "free batch axis")),
        ({"kind": TensorProto.DOUBLE}, ("tensor(double)", "float32")),
        ({"inputs": 2}, ("2 inputs (x, y)", "one input of float32")),
    ],
)
def test_files_with_other_inputs_are_refused(settings, parts, tmp_path: Path):
    path = write_extractor(tmp_path / "other.onnx", **settings)
    with refused(str(path), *parts):
        Onnx(path=str(path)).resolved(SHAPE)


def test_outputs_are_chosen_by_name(tmp_path: Path):
    path = write_extractor(tmp_path / "flat.onnx", shape=(6,), width=3)
    assert Onnx(path=str(path), output="copy").resolved((6,)).width == 6
    with refused("no output 'pooled'", "features, copy", "model.output"):
        Onnx(path=str(path), output="pooled").resolved((6,))


def test_an_output_that_is_no_vector_is_refused(file: Path):
    with refused("output 'copy' has shape (2, 1, 8, 8)", "features, copy"):
        Onnx(path=str(file), output="copy").resolved(SHAPE)


def test_no_file_and_no_network_are_refused(tmp_path: Path):
    with refused("path", "model.path=extractor.onnx"):
        Onnx().resolved(SHAPE)
    with refused("cannot read", "missing.onnx", "give the path of an .onnx file"):
        Onnx(path=str(tmp_path / "missing.onnx")).resolved(SHAPE)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\x00no network")
    with refused(str(broken), "onnxruntime", "export it again"):
        Onnx(path=str(broken)).resolved(SHAPE)


def test_without_onnxruntime_the_extra_is_named(file: Path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(FeddrmError, match=r"pip install 'feddrm\[export\]'"):
        Onnx(path=str(file)).resolved(SHAPE)
