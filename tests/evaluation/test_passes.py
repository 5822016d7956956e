"""Passes: models with one trunk share its pass, and predict the same as one pass per model."""

from __future__ import annotations

import copy

import pytest
import torch

from feddrm.data import Federation
from feddrm.evaluation import Execution, Queries, predict
from feddrm.models import LeNet, Mlp, Model, is_client_branch, is_head

from .served_models import CLIENTS, heads_apart, moved, one_by_one, pool, small, start, who


class TestOnePass:
    @pytest.mark.parametrize("model", [Mlp(hidden=(16,), branch=8), LeNet("mid"), LeNet("none")], ids=repr)
    @pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
    def test_one_pass_equals_a_pass_per_model(
        self, model: Model, dtype: torch.dtype, tolerance: float, trunks: list[int]
    ) -> None:
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(20, 3, 32, 32, generator=generator, dtype=dtype)
        test = Queries(x, torch.arange(20) % 10, torch.arange(20) % CLIENTS)
        net = copy.deepcopy(model.build((3, 32, 32), 10, CLIENTS)).to(dtype)
        models = heads_apart(net)
        shared = {leaf: value for leaf, value in moved(start(net), 9, is_client_branch).items() if not is_head(leaf)}
        anyone = moved(start(net), 8, is_head)
        predictions = predict(
            net, models, test, client_branch=shared, global_model=anyone, execution=Execution(batch_size=8)
        )
        assert trunks == [8, 8, 4]  # three batches, one pass

        assert predictions.logits.dtype == dtype
        torch.testing.assert_close(predictions.logits, one_by_one(net, models, x, 8), rtol=0, atol=tolerance)
        torch.testing.assert_close(predictions.client_logits, who(net, shared, x, 8), rtol=0, atol=tolerance)
        torch.testing.assert_close(
            predictions.global_logits, one_by_one(net, [anyone], x, 8)[0], rtol=0, atol=tolerance
        )
        assert torch.equal(predictions.labels, test.labels)
        assert torch.equal(predictions.origin, test.origin)

    def test_equal_copies_of_leaves_share_a_pass(self, digits: Federation, trunks: list[int]) -> None:
        net, test = small((1, 8, 8)), pool(digits)
        models = [{leaf: value.clone() for leaf, value in model.items()} for model in heads_apart(net)]
        predict(net, models, test, client_branch=start(net), execution=Execution(batch_size=1000))
        assert trunks == [len(test.labels)]

    def test_client_branches_of_the_clients_do_not_matter(self, digits: Federation, trunks: list[int]) -> None:
        net, test = small((1, 8, 8)), pool(digits)
        models = [moved(model, seed, is_client_branch) for seed, model in enumerate(heads_apart(net))]
        predictions = predict(net, models, test, client_branch=start(net), execution=Execution(batch_size=1000))
        assert len(trunks) == 1
        torch.testing.assert_close(predictions.client_logits, who(net, start(net), test.x), rtol=0, atol=1e-5)

    def test_predictions_need_no_gradient(self, digits: Federation) -> None:
        net = small((1, 8, 8))
        model = dict(net.named_parameters())
        predictions = predict(net, [model] * CLIENTS, pool(digits), client_branch=model, global_model=model)
        assert not any(field.requires_grad for field in predictions if isinstance(field, torch.Tensor))


class TestManyPasses:
    @pytest.mark.parametrize("leaf", ["trunk.stage1.linear.bias", "trunk.embedding.norm.weight", "project.norm.bias"])
    def test_one_other_number_needs_its_own_pass(self, leaf: str, digits: Federation, trunks: list[int]) -> None:
        net, test = small((1, 8, 8)), pool(digits)
        models = heads_apart(net)
        models[2][leaf] = models[2][leaf].clone()
        models[2][leaf][0] += 0.5
        predictions = predict(net, models, test, execution=Execution(batch_size=1000))
        assert len(trunks) == 2
        torch.testing.assert_close(predictions.logits, one_by_one(net, models, test.x), rtol=0, atol=1e-5)
        assert predictions.client_logits is None
        assert predictions.global_logits is None

    def test_wholly_personal_models_with_a_global_one_and_a_router(self, digits: Federation, trunks: list[int]) -> None:
        net, test = small((1, 8, 8)), pool(digits)
        everything = [moved(start(net), seed, lambda _: True) for seed in range(CLIENTS + 2)]
        *models, anyone, router = everything
        predictions = predict(
            net, models, test, global_model=anyone, client_branch=router, execution=Execution(batch_size=1000)
        )
        assert len(trunks) == CLIENTS + 2
        torch.testing.assert_close(predictions.logits, one_by_one(net, models, test.x), rtol=0, atol=1e-5)
        torch.testing.assert_close(predictions.global_logits, one_by_one(net, [anyone], test.x)[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(predictions.client_logits, who(net, router, test.x), rtol=0, atol=1e-5)

    def test_the_router_joins_the_pass_of_the_client_with_its_trunk(
        self, digits: Federation, trunks: list[int]
    ) -> None:
        net, test = small((1, 8, 8)), pool(digits)
        models = [moved(start(net), seed, lambda _: True) for seed in range(CLIENTS)]
        router = {leaf: value for leaf, value in models[1].items() if not is_head(leaf)}
        router = moved(router, 9, lambda leaf: leaf.startswith("client_head"))
        predictions = predict(net, models, test, client_branch=router, execution=Execution(batch_size=1000))
        assert len(trunks) == CLIENTS
        torch.testing.assert_close(predictions.client_logits, who(net, router, test.x), rtol=0, atol=1e-5)
