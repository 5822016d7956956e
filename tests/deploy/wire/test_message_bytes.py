"""The bytes of a message, read without torch."""

from __future__ import annotations

import pytest
import torch

from feddrm.deploy.wire.message_bytes import read_header, tensors_alone
from feddrm.deploy.wire.messages import pack
from feddrm.io.tensors import tensor_bytes
from refusal import refused

TENSORS = {"b": torch.arange(3).bfloat16(), "a/ü": torch.ones(2, 2), "none": torch.zeros(0), "n": torch.tensor(3)}


@pytest.mark.parametrize("names", [["b", "a/ü", "none", "n"], ["n"], []])
def test_the_tensors_alone_are_the_file_that_holds_nothing_else(names: list[str]) -> None:
    tensors = {name: TENSORS[name] for name in names}
    content = pack({"round": 3, "for": "ö"}, tensors)
    assert read_header(content) == ({"round": 3, "for": "ö"}, names)
    assert tensors_alone(content) == tensor_bytes(tensors)


@pytest.mark.parametrize("content", [b"", b"x" * 40, tensor_bytes(TENSORS), tensor_bytes(TENSORS, {"x": "y"})])
def test_other_bytes_are_refused(content: bytes) -> None:
    with refused("not a message of format feddrm-letter-1", "the same feddrm"):
        read_header(content)
