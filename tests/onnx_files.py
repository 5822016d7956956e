"""Small networks in ONNX files, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def write_extractor(
    path: Path,
    shape: Sequence[int] = (1, 8, 8),
    width: int = 12,
    batch: int | str = "n",
    kind: int = TensorProto.FLOAT,
    inputs: int = 1,
) -> Path:
    """relu(W x) of the flattened input as output ``features``, and the input itself as ``copy``."""
    size = int(np.prod(shape))
    weight = np.random.default_rng(0).normal(size=(size, width)).astype(np.float32) / size**0.5
    weight = weight if kind == TensorProto.FLOAT else weight.astype(np.float64)
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weight"], ["product"]),
        helper.make_node("Relu", ["product"], ["features"]),
        helper.make_node("Identity", ["x"], ["copy"]),
    ]
    dims = [batch, *shape]
    graph = helper.make_graph(
        nodes,
        "extractor",
        [helper.make_tensor_value_info(name, kind, dims) for name in ("x", "y")[:inputs]],
        [
            helper.make_tensor_value_info("features", kind, [batch, width]),
            helper.make_tensor_value_info("copy", kind, dims),
        ],
        [numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return path


def extractor_weight(shape: Sequence[int] = (1, 8, 8), width: int = 12) -> np.ndarray:
    """The matrix in the file of :func:`write_extractor`."""
    size = int(np.prod(shape))
    return np.random.default_rng(0).normal(size=(size, width)).astype(np.float32) / size**0.5
