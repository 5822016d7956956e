"""What every network promises, whatever its architecture."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

from feddrm.models import Model, Net, Outputs, is_client_branch, is_head, is_project, is_trunk, part

PREDICATES = (is_trunk, is_project, is_head, is_client_branch)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def reached(output: Tensor, net: Net) -> set[str]:
    """The leaves an output depends on."""
    leaves = dict(net.named_parameters())
    slopes = torch.autograd.grad(output.square().sum(), list(leaves.values()), allow_unused=True, retain_graph=True)
    return {leaf for leaf, slope in zip(leaves, slopes, strict=True) if slope is not None and slope.abs().max() > 0}


def test_every_model_has_a_case(cases):
    assert {c.model.name for c in cases.values()} == {name for name, model in Model.family.items() if not model.frozen}


def test_summaries_fit_a_listing():
    for member in Model.family.values():
        assert not member.summary().endswith(".")
        assert 20 < len(member.summary()) <= 110


@pytest.mark.parametrize("clients", [None, 4])
def test_parameters_are_the_whole_state(case, clients):
    net = case.build(clients)
    assert list(net.buffers()) == []
    assert set(net.state_dict()) == {leaf for leaf, _ in net.named_parameters()}
    assert all(leaf.requires_grad and leaf.dtype == torch.float32 for leaf in net.parameters())


def test_every_leaf_belongs_to_exactly_one_part(case):
    leaves = [leaf for leaf, _ in case.build().named_parameters()]
    assert [sum(belongs(leaf) for belongs in PREDICATES) for leaf in leaves] == [1] * len(leaves)
    assert all(any(map(belongs, leaves)) for belongs in PREDICATES)
    assert [leaf for leaf in leaves if is_head(leaf)] == ["head.weight", "head.bias"]
    assert [leaf for leaf in leaves if leaf.startswith("client_head.")] == ["client_head.weight", "client_head.bias"]


def test_without_clients_there_is_no_client_branch(case):
    net = case.build(None)
    assert not any(is_client_branch(leaf) for leaf, _ in net.named_parameters())
    assert net(case.inputs().float()).client_logits is None


def test_sizes_count_every_parameter_once(case):
    net = case.build()
    assert list(net.sizes()) == ["trunk", "project", "head", "client_project", "client_head"]
    assert sum(net.sizes().values()) == sum(leaf.numel() for leaf in net.parameters())
    assert list(case.build(None).sizes()) == ["trunk", "project", "head"]


def test_output_shapes(case):
    out = case.build()(case.inputs(3).float())
    assert out.logits.shape == (3, case.classes)
    assert out.client_logits.shape == (3, 4)
    assert out.features.dim() == 2
    assert all(t.dtype == torch.float32 and len(t) == 3 for t in (out.logits, out.client_logits, *out.stages.values()))


def test_stages_lead_from_the_input_to_the_embedding(case):
    net, x = case.shaken(), case.inputs(1)
    out = net(x)
    assert list(out.stages) == ["input", *(name for name, _ in net.trunk.named_children())]
    assert list(out.stages)[-1] == "embedding"
    assert out.stages["input"] is x
    assert out.stages["embedding"] is out.features
    rest = x  # every stage is a function of the one before
    for name, stage in net.trunk.named_children():
        rest = stage(rest)
        assert torch.equal(rest, out.stages[name])


def test_forward_is_embed_hidden_head(case):
    net, x = case.shaken(), case.inputs()
    out = net(x)
    features, stages = net.embed(x)
    assert torch.equal(out.features, features)
    assert torch.equal(out.logits, net.head(net.hidden(features)))
    assert torch.equal(out.client_logits, net.client_logits(stages))


def test_what_each_output_depends_on(case):
    net = case.shaken()
    out = net(case.inputs(1))
    leaves = {leaf for leaf, _ in net.named_parameters()}
    assert reached(out.features, net) == {leaf for leaf in leaves if is_trunk(leaf)}
    assert reached(out.logits, net) == {leaf for leaf in leaves if not is_client_branch(leaf)}
    by_client = reached(out.client_logits, net)
    assert {leaf for leaf in by_client if not is_trunk(leaf)} == {leaf for leaf in leaves if is_client_branch(leaf)}


def test_the_client_branch_leaves_the_class_path_alone(case):
    net, plain, x = case.shaken(), case.build(None), case.inputs()
    leaves = {leaf: v for leaf, v in net.named_parameters() if not is_client_branch(leaf)}
    assert torch.equal(net(x).logits, functional_call(plain, leaves, (x,)).logits)


def test_common_leaves_start_equal_with_and_without_client_branch(case):
    plain, full = (case.build(clients).state_dict() for clients in (None, 4))
    assert set(plain) < set(full)
    for leaf, value in plain.items():
        assert torch.equal(value, full[leaf]), leaf


def test_seed_decides_the_weights(case):
    first = case.build().state_dict()
    again, other = (case.model.build(case.shape, case.classes, 4, seed=s).state_dict() for s in (2025, 2026))
    assert all(torch.equal(first[leaf], again[leaf]) for leaf in first)
    assert {leaf for leaf in first if leaf.endswith("linear.weight") or leaf == "head.weight"} <= {
        leaf for leaf in first if not torch.equal(first[leaf], other[leaf])
    }


def test_class_and_client_branch_start_different(case):
    net = case.build()
    rows = min(case.classes, 4)
    assert not torch.allclose(net.head.weight[:rows], net.client_head.weight[:rows])


def test_same_result_in_both_modes(case):
    net, x = case.shaken(), case.inputs(1)
    assert torch.equal(net.eval()(x).logits, net.train()(x).logits)


def test_a_sample_is_judged_alone(case):
    net, x = case.shaken(), case.inputs(2)
    among_others = x.clone()
    among_others[1] = 50 * x[1].flip(-1) - 3
    for one, other, alone in zip(*(flat(net(batch)) for batch in (x, among_others, x[:1])), strict=True):
        close(one[0], other[0])
        close(one[:1], alone)
        assert not torch.allclose(one[1], other[1])


def test_functional_call_equals_the_network_with_those_weights(case):
    net, other, x = case.build(), case.shaken(), case.inputs()
    want = other(x)
    got = functional_call(net, dict(other.named_parameters()), (x,))
    assert list(got.stages) == list(want.stages)
    for a, b in zip(flat(got), flat(want), strict=True):
        assert torch.equal(a, b)
    assert not torch.allclose(net(x.float()).logits, want.logits.float())


def test_vmap_over_stacked_parameters_equals_one_by_one(case):
    """Outputs and gradients of two networks at once."""
    nets, x, y = [case.shaken(seed=s) for s in range(2)], case.inputs(1), torch.tensor([1])

    def loss(out: Outputs) -> Tensor:
        return F.cross_entropy(out.logits, y) + F.cross_entropy(out.client_logits, y)

    def run(leaves: dict[str, Tensor]) -> tuple[Tensor, Outputs]:
        out = functional_call(nets[0], leaves, (x,))
        return loss(out), out

    stacked, buffers = stack_module_state(nets)
    assert buffers == {}
    slopes, got = vmap(grad(run, has_aux=True))(stacked)
    for i, net in enumerate(nets):
        want = net(x)
        assert list(got.stages) == list(want.stages)
        for a, b in zip(flat(got), flat(want), strict=True):
            close(a[i], b)
        for leaf, slope in zip(slopes, torch.autograd.grad(loss(want), list(net.parameters())), strict=True):
            close(slopes[leaf][i], slope)


def test_one_trunk_pass_serves_many_heads(case):
    """The composites of clients that share the body: one embedding, m small heads."""
    body, x = case.shaken(), case.inputs()
    owners = [case.shaken(seed=s) for s in (0, 1)]
    heads, _ = stack_module_state([owner.head for owner in owners])
    u = body.hidden(body.embed(x)[0])
    got = vmap(lambda head: functional_call(body.head, head, (u,)))(heads)
    for i, owner in enumerate(owners):
        mine = {k: v for k, v in owner.named_parameters() if is_head(k)}
        composite = functional_call(body, {**dict(body.named_parameters()), **mine}, (x,))
        close(got[i], composite.logits)
        assert torch.equal(functional_call(body.head, part(mine, "head"), (u,)), composite.logits)
    assert not torch.allclose(got[0], got[1])


def flat(out) -> list[Tensor]:
    return [out.logits, out.features, out.client_logits, *out.stages.values()]
