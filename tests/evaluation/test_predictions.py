"""Asking all models: one pass where the trunk is shared, the same predictions as one pass per model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from feddrm.data import Federation, Participant, RandomResizedCrop, draw_for, load
from feddrm.errors import FeddrmError, SettingError
from feddrm.evaluation import Execution, Queries, pooled_queries, predict
from feddrm.models import LeNet, Mlp, Model, Net, is_client_branch, is_head

CLIENTS = 4
Leaves = dict[str, Tensor]


@pytest.fixture(scope="module")
def digits() -> Federation:
    return load("digits", clients=CLIENTS, seed=0)


@pytest.fixture(scope="module")
def images() -> Federation:
    """Colour images with a crop: what CIFAR looks like."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (2, 30, 3, 16, 16), generator=generator, dtype=torch.uint8)
    y = torch.arange(30) % 3
    fed = Federation.from_arrays({"a": (x[0].numpy(), y.numpy()), "b": (x[1].numpy(), y.numpy())})
    return replace(fed, crop=RandomResizedCrop())


def moved(leaves: Leaves, seed: int, which: Callable[[str], bool]) -> Leaves:
    """The same model with some leaves elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    return {
        leaf: value + 0.3 * torch.randn(value.shape, generator=generator, dtype=value.dtype) if which(leaf) else value
        for leaf, value in leaves.items()
    }


def start(net: Net) -> Leaves:
    return {leaf: value.detach() for leaf, value in net.named_parameters()}


def heads_apart(net: Net) -> list[Leaves]:
    return [moved(start(net), seed, is_head) for seed in range(CLIENTS)]


def one_by_one(net: Net, models: list[Leaves], x: Tensor, batch_size: int = 1000) -> Tensor:
    """The plain way: the whole network once per model. In single precision the size of a batch shows."""
    with torch.no_grad():
        batches = torch.split(x, batch_size)
        return torch.stack([torch.cat([functional_call(net, m, (b,)).logits for b in batches]) for m in models])


def who(net: Net, model: Leaves, x: Tensor, batch_size: int = 1000) -> Tensor:
    with torch.no_grad():
        return torch.cat([functional_call(net, model, (b,)).client_logits for b in torch.split(x, batch_size)])


@pytest.fixture
def trunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of samples of every run of a trunk."""
    runs: list[int] = []
    embed = Net.embed

    def counted(self: Net, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        runs.append(len(x))
        return embed(self, x)

    monkeypatch.setattr(Net, "embed", counted)
    return runs


def small(shape: tuple[int, ...], clients: int | None = CLIENTS) -> Net:
    return Mlp(hidden=(16, 12), branch=8).build(shape, 10, clients)


def pool(fed: Federation) -> Queries:
    return pooled_queries(fed, crop=False, seed=0, round=1)


class TestOnePass:
    @pytest.mark.parametrize("model", [Mlp(hidden=(16,), branch=8), LeNet("mid"), LeNet("none")], ids=repr)
    @pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
    def test_agrees_with_a_pass_per_model(
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

    def test_leaves_that_are_equal_but_not_the_same_are_found(self, digits: Federation, trunks: list[int]) -> None:
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

    def test_nothing_is_kept_for_a_gradient(self, digits: Federation) -> None:
        net = small((1, 8, 8))
        model = dict(net.named_parameters())
        predictions = predict(net, [model] * CLIENTS, pool(digits), client_branch=model, global_model=model)
        assert not any(tensor.requires_grad for tensor in predictions if tensor is not None)


class TestManyPasses:
    @pytest.mark.parametrize("leaf", ["trunk.stage1.linear.bias", "trunk.embedding.norm.weight", "project.norm.bias"])
    def test_one_number_elsewhere_needs_its_own_pass(self, leaf: str, digits: Federation, trunks: list[int]) -> None:
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


class TestRefused:
    def test_a_missing_leaf_is_not_replaced_by_the_networks_own(self, digits: Federation) -> None:
        net, test = small((1, 8, 8)), pool(digits)
        models = heads_apart(net)
        del models[1]["head.bias"]
        with pytest.raises(FeddrmError, match=r"model 1 has no leaf 'head\.bias'"):
            predict(net, models, test)
        body = {leaf: value for leaf, value in start(net).items() if not is_head(leaf)}
        with pytest.raises(FeddrmError, match=r"global model has no leaf 'head\.weight'"):
            predict(net, heads_apart(net), test, global_model=body)
        shared = {leaf: value for leaf, value in start(net).items() if leaf != "client_project.linear.weight"}
        with pytest.raises(FeddrmError, match=r"client branch has no leaf 'client_project\.linear\.weight'"):
            predict(net, heads_apart(net), test, client_branch=shared)

    def test_a_client_branch_that_is_not_there(self, digits: Federation) -> None:
        net = small((1, 8, 8), clients=None)
        with pytest.raises(FeddrmError, match="no client branch"):
            predict(net, heads_apart(net), pool(digits), client_branch=start(net))

    def test_nothing_to_ask(self, digits: Federation) -> None:
        net, test = small((1, 8, 8)), pool(digits)
        with pytest.raises(FeddrmError, match="no model"):
            predict(net, [], test)
        with pytest.raises(SettingError, match="batch_size=0"):
            predict(net, heads_apart(net), test, execution=Execution(batch_size=0))
        with pytest.raises(FeddrmError, match="empty"):
            predict(net, heads_apart(net), Queries(test.x[:0], test.labels[:0], test.origin[:0]))


class TestPooledTestSet:
    def test_holds_every_sample_as_its_own_client_sees_it(self, digits: Federation) -> None:
        test = pool(digits)
        assert test.x.dtype == torch.float32
        assert torch.bincount(test.origin).tolist() == [len(client.test) for client in digits.clients]
        for number, client in enumerate(digits.clients):
            mine = test.origin == number
            assert torch.equal(test.x[mine], client.view(client.test.x))
            assert torch.equal(test.labels[mine], client.test.y)

    def test_crops_are_those_of_their_key(self, images: Federation) -> None:
        def x(seed: int = 0, round: int = 1, crop: bool = True) -> Tensor:
            return pooled_queries(images, crop=crop, seed=seed, round=round).x

        assert torch.equal(x(), x())
        assert not torch.equal(x(), x(round=2))
        assert not torch.equal(x(), x(seed=1))
        full = torch.cat([client.view(client.test.x) for client in images.clients])
        assert torch.equal(x(crop=False), full)
        assert not torch.equal(x(), full)

    def test_crops_differ_from_client_to_client(self, images: Federation) -> None:
        first = images.clients[0]
        twins = replace(images, clients=(first, replace(first, name="twin")))
        a, b = pooled_queries(twins, crop=True, seed=0, round=1).x.chunk(2)
        assert not torch.equal(a, b)

    def test_crops_are_no_training_draws(self, images: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
        keys: list[tuple[int, ...]] = []
        from feddrm.data import batches
        from feddrm.evaluation import predictions

        generator_for = batches.generator_for

        def recorded(*key: int) -> torch.Generator:
            keys.append(key)
            return generator_for(*key)

        monkeypatch.setattr(predictions, "generator_for", recorded)
        pooled_queries(images, crop=True, seed=7, round=3)
        assert len(set(keys)) == len(images)
        assert all(key[1] >= 1 << 24 for key in keys)  # no federation has a client of this number
        state = torch.random.get_rng_state()
        before = draw_for(Participant.of(images, 0), steps=1, batch_size=4, seed=7, round=3, phase=0)
        pooled_queries(images, crop=True, seed=7, round=3)
        after = draw_for(Participant.of(images, 0), steps=1, batch_size=4, seed=7, round=3, phase=0)
        assert torch.equal(before.samples, after.samples)
        assert torch.equal(torch.random.get_rng_state(), state)

    def test_data_without_crops_stays_whole(self, digits: Federation) -> None:
        assert torch.equal(pooled_queries(digits, crop=True, seed=0, round=1).x, pool(digits).x)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_answers_come_on_the_models_device(digits: Federation) -> None:
    net, test = small((1, 8, 8)).double(), pool(digits)
    models = heads_apart(net)
    there = [{leaf: value.cuda() for leaf, value in model.items()} for model in models]
    predictions = predict(copy.deepcopy(net).cuda(), there, test, client_branch=there[0], global_model=there[0])
    assert {t.device.type for t in predictions if t is not None} == {"cuda"}
    torch.testing.assert_close(predictions.logits.cpu(), predict(net, models, test).logits, rtol=0, atol=1e-10)
    on_gpu = pooled_queries(digits.to("cuda"), crop=True, seed=0, round=1)
    torch.testing.assert_close(on_gpu.x.cpu(), test.x)
