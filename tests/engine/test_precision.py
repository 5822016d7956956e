"""Which arithmetic a precision means on which device, and which leaves are cast."""

from __future__ import annotations

import pytest
import torch

from feddrm.engine import PRECISIONS, Arithmetic, arithmetic, functional
from feddrm.errors import SettingError
from feddrm.models import Mlp


@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_a_cpu_computes_in_the_type_of_the_parameters(precision):
    how = arithmetic(precision, "cpu")
    assert how == Arithmetic("cpu")
    leaves = {"trunk.w": torch.ones(2, 2), "trunk.b": torch.ones(2)}
    assert all(how.leaves(leaves)[leaf] is value for leaf, value in leaves.items())
    with how.set(), how.casting():
        assert not torch.is_autocast_enabled("cpu")
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_a_cpu_refuses_precisions_of_gpus(precision):
    with pytest.raises(SettingError, match=rf"precision '{precision}' is for GPUs: use 'fp32' on cpu"):
        arithmetic(precision, "cpu")


def test_an_unknown_precision_is_refused():
    with pytest.raises(SettingError, match=r"unknown precision 'fp23'; did you mean 'fp32'\?") as refusal:
        arithmetic("fp23", "cpu")
    assert all(known in str(refusal.value) for known in PRECISIONS)


def test_matrices_of_trunk_and_branches_are_cast_and_nothing_else():
    how = Arithmetic("cpu", torch.bfloat16)
    net = Mlp(hidden=(5,), branch=4).build((3,), 2, 3)
    leaves = {leaf: value.detach() for leaf, value in net.named_parameters()}
    cast = how.leaves(leaves)
    assert list(cast) == list(leaves)
    for leaf, value in leaves.items():
        narrow = value.dim() > 1 and not leaf.startswith(("head.", "client_head."))
        assert cast[leaf].dtype == (torch.bfloat16 if narrow else torch.float32), leaf


def test_gradients_pass_through_the_cast_in_the_parameters_type():
    how = Arithmetic("cpu", torch.bfloat16)
    trained, frozen = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)
    cast = how.leaves({"trunk.a": trained, "trunk.b": frozen})
    assert not cast["trunk.b"].requires_grad
    (cast["trunk.a"] @ cast["trunk.b"]).sum().backward()
    assert trained.grad is not None
    assert trained.grad.dtype == torch.float32
    assert torch.equal(trained.grad, torch.full((2, 2), 2.0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_outputs_have_the_precision_of_the_leaves():
    """bfloat16 is used inside the network only."""
    net = Mlp(hidden=(5,), branch=4).build((3,), 2).cuda()
    leaves = {leaf: value.detach() for leaf, value in net.named_parameters()}
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).cuda()
    exact, rounded = functional(net)(leaves, x), functional(net, Arithmetic("cuda", torch.bfloat16))(leaves, x)
    assert (rounded.features.dtype, rounded.logits.dtype) == (torch.float32, torch.float32)
    assert not torch.equal(exact.features, rounded.features)
    torch.testing.assert_close(rounded.features, exact.features, rtol=0, atol=0.1)
