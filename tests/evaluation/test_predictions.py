"""The pooled test set, and predictions by every client's model: devices, old names, and what is refused."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from feddrm.data import Federation, Participant, QueryViews, draw_for
from feddrm.errors import FeddrmError, SettingError
from feddrm.evaluation import Execution, Queries, pooled_queries, predict
from feddrm.models import is_head

from .served_models import heads_apart, pool, small, start


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

    def test_a_missing_client_branch_is_refused(self, digits: Federation) -> None:
        net = small((1, 8, 8), clients=None)
        with pytest.raises(FeddrmError, match="no client branch"):
            predict(net, heads_apart(net), pool(digits), client_branch=start(net))

    def test_no_model_no_sample_and_no_batch_are_refused(self, digits: Federation) -> None:
        net, test = small((1, 8, 8)), pool(digits)
        with pytest.raises(FeddrmError, match="no model"):
            predict(net, [], test)
        with pytest.raises(SettingError, match="batch_size=0"):
            predict(net, heads_apart(net), test, execution=Execution(batch_size=0))
        with pytest.raises(FeddrmError, match="empty"):
            predict(net, heads_apart(net), Queries(test.x[:0], test.labels[:0], test.origin[:0]))


class TestPooledTestSet:
    def test_it_knows_the_subjects_of_samples(self, digits: Federation) -> None:
        assert pool(digits).subject is None
        first, *others = digits.clients
        numbers = torch.arange(len(first.test)) // 3
        fed = replace(digits, clients=(replace(first, test=replace(first.test, subject=numbers)), *others))
        test = pooled_queries(fed, crop=False, seed=0, round=1)
        expected = [numbers, *(torch.arange(len(client.test)) for client in others)]
        assert test.subject is not None
        assert torch.equal(test.subject, torch.cat(expected))
        parts = [part.subject for part in test.parts(7)]
        assert torch.equal(torch.cat([part for part in parts if part is not None]), test.subject)
        assert pooled_queries(fed, crop=False, seed=0, round=1, clients=[1, 2]).subject is None

    def test_every_sample_is_seen_by_its_own_client(self, digits: Federation) -> None:
        test = pool(digits)
        assert test.x.dtype == torch.float32
        assert torch.bincount(test.origin).tolist() == [len(client.test) for client in digits.clients]
        for number, client in enumerate(digits.clients):
            mine = test.origin == number
            assert torch.equal(test.x[mine], client.view(client.test.x))
            assert torch.equal(test.labels[mine], client.test.y)

    def test_crops_depend_on_seed_and_round(self, images: Federation) -> None:
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

    def test_crops_share_no_key_with_training(self, images: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
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

    def test_data_without_crops_are_not_cropped(self, digits: Federation) -> None:
        assert torch.equal(pooled_queries(digits, crop=True, seed=0, round=1).x, pool(digits).x)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_predictions_are_on_the_models_device(digits: Federation) -> None:
    net, test = small((1, 8, 8)).double(), pool(digits)
    models = heads_apart(net)
    there = [{leaf: value.cuda() for leaf, value in model.items()} for model in models]
    predictions = predict(copy.deepcopy(net).cuda(), there, test, client_branch=there[0], global_model=there[0])
    assert {t.device.type for t in predictions if isinstance(t, torch.Tensor)} == {"cuda"}
    torch.testing.assert_close(predictions.logits.cpu(), predict(net, models, test).logits, rtol=0, atol=1e-10)
    on_gpu = pooled_queries(digits.to("cuda"), crop=True, seed=0, round=1)
    torch.testing.assert_close(on_gpu.x.cpu(), test.x)


class TestViews:
    def test_several_views_are_those_of_the_whole_image(self, images: Federation) -> None:
        views = pooled_queries(images, crop=True, seed=0, round=1, views=3)
        assert torch.equal(views.x, pooled_queries(images, crop=False, seed=0, round=1).x)
        assert views.views == images.query_views.take(3)
        assert pooled_queries(images, crop=True, seed=0, round=1).views.count == 1

    def test_all_logits_are_means_over_the_views(self, images: Federation) -> None:
        net = small((3, 16, 16))
        models, more = heads_apart(net), {"client_branch": start(net), "global_model": start(net)}
        test = pooled_queries(images, crop=False, seed=0, round=1, views=4)
        found = predict(net, models, test, **more)
        each = [predict(net, models, replace(test, x=x, views=QueryViews()), **more) for x in test.views(test.x)]
        assert len(each) == 4
        for name in ("logits", "client_logits", "global_logits"):
            mean = torch.stack([getattr(one, name) for one in each]).mean(0)
            torch.testing.assert_close(getattr(found, name), mean)
            assert not torch.allclose(mean, getattr(each[0], name))

    def test_one_view_runs_the_trunk_once(self, images: Federation, trunks: list[int]) -> None:
        net = small((3, 16, 16))
        for count in (1, 3):
            trunks.clear()
            test = pooled_queries(images, crop=False, seed=0, round=1, views=count)
            predict(net, heads_apart(net), test)
            assert trunks == [len(test.x)] * count
