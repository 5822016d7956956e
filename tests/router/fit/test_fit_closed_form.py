"""Router and heads in closed form: equal to pooled fits, whatever the division, with one message of each client."""

from __future__ import annotations

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from feddrm.data import Client, Federation, Split
from feddrm.methods import Fed3R, FedLDA
from feddrm.models import Identity, is_trunk
from feddrm.moments import Moments
from feddrm.moments import heads as moment_heads
from feddrm.router import Recipe, RouterSettings, fit_router
from feddrm.router.fit.cohort import Facts, Trunk
from feddrm.router.fit.feature_blocks import BlockChooser
from feddrm.router.fit.fit_closed_form import ClosedForm, closed_form_recipes, fit_closed_form, fit_warnings
from feddrm.router.fit.local_cohort import LocalCohort
from refusal import refused

D, CLASSES = 6, 3
NAMES = ("oslo", "lima", "suva")


def federation(seed: int = 0, sizes: tuple[int, ...] = (80, 60, 40)) -> Federation:
    rng = np.random.default_rng(seed)
    centres, places = (2 * rng.normal(size=(count, D)) for count in (CLASSES, len(sizes)))

    def split(n: int, client: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(n) % CLASSES
        return centres[y] + places[client] + rng.normal(size=(n, D)), y

    train = {name: split(n, i) for i, (name, n) in enumerate(zip(NAMES, sizes, strict=True))}
    test = {name: split(30, i) for i, name in enumerate(NAMES)}
    return Federation.from_arrays(train, test=test)


def trunk_of(fed: Federation, **settings) -> Trunk:
    net = Identity(**settings).build(fed.shape, len(fed.classes), len(fed)).requires_grad_(False)
    return Trunk(net, {leaf: value for leaf, value in net.named_parameters() if is_trunk(leaf)})


def fitted(fed: Federation, method, **settings):
    return fit_closed_form(LocalCohort(fed, RouterSettings(seed=1)), trunk_of(fed, **settings), method)


def test_leaves_and_artifact_hold_the_same_heads():
    fed = federation()
    result = fitted(fed, Fed3R())
    net = Identity().build(fed.shape, CLASSES, 3)
    x = fed.clients[0].test.x
    leaves = {**result.shared, **result.private["oslo"]}
    out = torch.func.functional_call(net, leaves, (x,))
    router, heads = result.fitted.router, result.fitted.heads
    torch.testing.assert_close(out.client_logits, router.logits(router.features(x)), atol=1e-4, rtol=1e-4)
    point = heads.probe + result.fitted.private["oslo"]
    torch.testing.assert_close(out.logits, heads.scaler(x) @ point[:, :-1].T + point[:, -1], atol=1e-4, rtol=1e-4)
    assert router.recipe.name == heads.recipe.name == "raw"


def test_other_recipes_can_be_tried_on_a_trunk():
    fed = federation()
    cohort = LocalCohort(fed, RouterSettings(seed=1))
    recipes = [Recipe.parse(name) for name in ("raw", "embedding", "raw+embedding")]
    chosen = ClosedForm(cohort, trunk_of(fed, features=40), Fed3R(), recipes).router().chosen
    assert list(chosen["candidates"]) == ["raw", "embedding", "raw+embedding"]
    losses = {name: block["held_out_loss"] for name, block in chosen["candidates"].items()}
    assert chosen["router"]["recipe"] == min(losses, key=losses.__getitem__)
    assert chosen["candidates"]["raw+embedding"]["features"] == D + 40


@pytest.mark.parametrize("method", [Fed3R(), FedLDA(half=True)])
def test_gram_matrices_of_many_clients_are_not_held_at_once(monkeypatch, method):
    rng = np.random.default_rng(0)
    clients = {f"c{i}": (rng.normal(size=(12, D)), np.arange(12) % CLASSES) for i in range(40)}
    fed = Federation.from_arrays(clients, test={name: (x[:3], y[:3]) for name, (x, y) in clients.items()})
    alive: weakref.WeakSet[object] = weakref.WeakSet()
    most = 0
    of, tensors = Moments.of, Moments.tensors

    def noted(gram: torch.Tensor) -> None:
        nonlocal most
        alive.add(gram)
        most = max(most, len(alive))

    def noted_of(*args) -> Moments:
        moments = of(*args)
        noted(moments.scatter)
        return moments

    def noted_tensors(self: Moments, *, half: bool = False) -> dict[str, torch.Tensor]:
        message = tensors(self, half=half)
        noted(message["correlation" if half else "scatter"])
        return message

    monkeypatch.setattr(Moments, "of", staticmethod(noted_of))
    monkeypatch.setattr(Moments, "tensors", noted_tensors)
    fitted(fed, method)
    assert 5 <= most < len(fed)  # 40 clients with five parts each


@pytest.mark.parametrize("method", [Fed3R(), FedLDA()])
def test_the_correction_of_few_samples_needs_no_gram_matrix_of_all_features(monkeypatch, method):
    rng, width = np.random.default_rng(0), 60
    weight = rng.normal(size=(width, CLASSES))
    x = {name: rng.normal(size=(40, width)) + rng.normal(size=width) for name in NAMES}
    clients = {name: (rows, (rows @ weight).argmax(1)) for name, rows in x.items()}
    fed = Federation.from_arrays(clients, test=clients)
    fit = ClosedForm(cohort := LocalCohort(fed, RouterSettings(seed=1)), trunk_of(fed), method, [Recipe.parse("raw")])
    cohort.measure(fit.everything, fit.trunk, fit.holdout)
    probe, counts = fit.heads["class"], fit.chooser.total.by("class")[0]
    expected = []
    for number in range(len(fed)):
        parts = [probe.block.of(part) for part in fit.moments_of(number)]
        folds = BlockChooser(parts, fit.holdout.used, {"all": width}, None).folds
        possible = method.corrections(folds, probe.closed_folds, probe.closed, counts, probe.temperature)
        expected.append([change / probe.temperature for change, *_ in possible])
    widths = []
    factor = moment_heads._factor
    monkeypatch.setattr(moment_heads, "_factor", lambda gram, ridge: widths.append(len(gram)) or factor(gram, ridge))
    for correction, own in zip(fit.corrections(probe).values(), expected, strict=True):
        assert any(torch.allclose(correction, change, rtol=1e-8, atol=1e-10) for change in own)
    assert set(widths) <= {40}


def test_clients_with_few_samples_correct_the_class_frequencies():
    rng, width, classes = np.random.default_rng(0), 40, 10
    centres = 0.5 * rng.normal(size=(classes, width))

    def samples(n: int, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y = rng.choice(classes, n, p=shares)
        return centres[y] + rng.normal(size=(n, width)), y

    shares = {f"c{i}": rng.dirichlet(np.full(classes, 0.3)) for i in range(30)}
    clients = {name: samples(40, share) for name, share in shares.items()}
    fed = Federation.from_arrays(clients, test={name: samples(100, share) for name, share in shares.items()})
    result = fitted(fed, Fed3R())
    probe, scaler = result.fitted.heads.probe, result.fitted.heads.scaler

    def right(client: Client, head: torch.Tensor) -> float:
        answers = (scaler(client.test.x) @ head[:, :-1].T + head[:, -1]).argmax(1)
        return float((answers == client.test.y).float().mean())

    gains = [right(c, probe + result.fitted.private[c.name]) - right(c, probe) for c in fed.clients]
    assert sum(gains) / len(gains) > 0.02  # weights of their own instead: -0.006


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("method", [Fed3R(), FedLDA(), Fed3R(polish=2), Fed3R(half=True)])
def test_a_gpu_fits_the_same_heads(method):
    here, there = (fitted(federation().to(device), method).fitted for device in ("cpu", "cuda"))
    torch.testing.assert_close(there.router.weight.cpu(), here.router.weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(there.heads.probe.cpu(), here.heads.probe, rtol=1e-4, atol=1e-5)
    for name, correction in here.private.items():
        # Small weights are known to the rounding of the large ones: inputs changed by 6e-8 move them by up to
        # 1.4e-5 of the largest weight (two rounds of polish, six draws).
        room = 1e-4 * float(correction.abs().max())
        torch.testing.assert_close(there.private[name].cpu(), correction, rtol=0, atol=room)


@pytest.mark.parametrize("method", [Fed3R(ridge=0.05), FedLDA(ridge=0.05)])
def test_the_class_head_does_not_depend_on_the_division(method):
    fed = federation()
    rows = [(client.train.x, client.train.y) for client in fed.clients]
    x, y = (torch.cat(parts) for parts in zip(*rows, strict=True))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    clients = tuple(replace(client, train=Split(x[i::3], y[i::3])) for i, client in enumerate(fed.clients))
    other = replace(fed, clients=clients)
    shared = [fitted(one, method) for one in (fed, other)]
    heads = [result.shared["head.weight"] * result.fitted.chosen["probe"]["temperature"] for result in shared]
    torch.testing.assert_close(heads[0], heads[1], rtol=1e-4, atol=1e-5)
    for leaf in ("project.mean", "project.scale"):
        torch.testing.assert_close(shared[0].shared[leaf], shared[1].shared[leaf])


def test_a_head_names_clients_and_classes_of_new_samples():
    fed = federation()
    for method in (Fed3R(), FedLDA()):
        result = fitted(fed, method)
        net = Identity().build(fed.shape, CLASSES, 3)
        for number, client in enumerate(fed.clients):
            out = torch.func.functional_call(net, {**result.shared, **result.private[client.name]}, (client.test.x,))
            assert (out.logits.argmax(1) == client.test.y).float().mean() > 0.85
            assert (out.client_logits.argmax(1) == number).float().mean() > 0.6


def test_answers_are_calibrated_on_what_each_fold_held_out():
    fed = federation()
    result = fitted(fed, Fed3R())
    assert result.fitted.chosen["probe"]["temperature"] < 0.5  # squared errors give scores between 0 and 1
    assert result.fitted.router.calibration.temperature == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("polish", [0, 2])
def test_the_inputs_of_a_table_are_decorrelated_as_by_any_other_fit(polish):
    fed = federation()
    router = fitted(fed, Fed3R(polish=polish)).fitted.router
    other = fit_router(None, {}, fed, RouterSettings(features="raw", heads=False)).router
    torch.testing.assert_close(router.decorrelated.matrix, other.decorrelated.matrix, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_polishing_reaches_the_optimum_of_the_softmax():
    fed = federation()
    start, few, many = (fitted(fed, Fed3R(ridge=0.1, polish=k)) for k in (0, 2, 200))
    cohort = LocalCohort(fed, RouterSettings(seed=1))
    assert [r.fitted.chosen["router"]["rounds"] for r in (start, few)] == [0, 2]
    assert many.fitted.chosen["router"]["converged"]
    assert not few.fitted.chosen["router"]["converged"]
    router = many.fitted.router
    x = torch.cat([client.train.x for client in cohort.federation.clients]).double()
    y = torch.cat([torch.full((len(c.train),), i) for i, c in enumerate(fed.clients)])
    weight = torch.cat([router.weight, router.bias[:, None]], 1).double().requires_grad_()
    z = router.scaler(x)
    loss = torch.nn.functional.cross_entropy(z @ weight[:, :-1].T + weight[:, -1], y)
    loss = loss + 0.01 / 2 * weight[:, :-1].square().sum()  # a tenth of the ridge: the softmax is flatter
    (gradient,) = torch.autograd.grad(loss, weight)
    assert float(gradient.abs().max()) < 3e-3


def test_float16_messages_are_smaller_and_their_cost_is_known():
    fed = federation()
    exact, half = (fitted(fed, Fed3R(half=half)).fitted.chosen["message"] for half in (False, True))
    assert exact["type"] == "float64"
    assert half["bytes"] < exact["bytes"]
    loss = half["held_out_loss"]
    assert 0 < abs(loss["float16"] - loss["float64"]) < 1e-3


def test_random_features_set_the_size_of_the_message():
    fed = federation()
    few, many = (fitted(fed, Fed3R(), features=n) for n in (4, 40))
    assert few.fitted.chosen["message"]["bytes"] < many.fitted.chosen["message"]["bytes"]
    assert few.fitted.router.recipe.name == "embedding"
    assert few.shared["head.weight"].shape == (CLASSES, 4)
    assert "trunk.embedding.weight" in few.shared


def test_images_may_use_colour_and_tables_may_not():
    table = federation()
    assert [r.name for r in closed_form_recipes(trunk_of(table), Facts.of(table))] == ["raw"]
    pixels = np.random.default_rng(0).integers(0, 255, (20, 8, 8, 3)).astype(np.uint8)
    images = Federation.from_arrays({name: (pixels, np.arange(20) % 2) for name in NAMES})
    names = [r.name for r in closed_form_recipes(trunk_of(images), Facts.of(images))]
    assert names == ["raw", "colour", "raw+colour"]
    large = np.zeros((20, 12, 12, 3), np.uint8) + np.arange(20, dtype=np.uint8)[:, None, None, None]
    images = Federation.from_arrays({name: (large, np.arange(20) % 2) for name in NAMES})
    names = [r.name for r in closed_form_recipes(trunk_of(images), Facts.of(images))]
    assert names == ["embedding", "colour", "embedding+colour"]


def test_features_that_are_not_finite_name_client_and_sample():
    fed = federation()
    x = fed.clients[1].train.x.clone()
    x[7, 2] = torch.nan
    broken = replace(fed.clients[1], train=Split(x, fed.clients[1].train.y))
    fed = replace(fed, clients=(fed.clients[0], broken, fed.clients[2]))
    with refused("client 'lima'", "training sample 7", "not finite", "correct the sample"):
        fitted(fed, Fed3R())
    with refused("client 'lima'", "training sample 7", "not finite"):
        fit_router(None, {}, fed)


def with_columns(fed: Federation, change) -> Federation:
    def changed(client: Client) -> Client:
        return replace(client, train=Split(change(client.train.x), client.train.y),
                       test=Split(change(client.test.x), client.test.y))  # fmt: skip

    clients = tuple(map(changed, fed.clients))
    columns = tuple(f"x{i}" for i in range(clients[0].train.x.shape[1]))
    return replace(fed, clients=clients, columns=columns)


def test_usual_data_give_no_warning():
    assert fitted(federation(), Fed3R()).warnings == ()


def test_constant_and_equal_features_are_named_and_do_no_harm():
    fed = with_columns(federation(), lambda x: torch.cat([x, torch.full((len(x), 1), 0.1), 2 * x[:, :1] + 1], 1))
    result = fitted(fed, Fed3R())
    constant, equal = result.warnings
    assert constant == "x6 is constant: no head uses what is constant; leave it out"
    assert equal.startswith("x7 (as x0) is repeated")
    assert "leave the copies out" in equal
    assert not bool(result.shared["head.weight"][:, 6].any())
    assert all(bool(value.isfinite().all()) for value in result.shared.values())


def test_a_singular_gram_matrix_without_a_ridge_is_refused():
    fed = with_columns(federation(), lambda x: torch.cat([x, x[:, :1]], 1))
    with refused("7 features is singular with ridge=0", "--ridge 0.01"):
        fitted(fed, Fed3R(ridge=0.0))


def test_a_class_of_one_client_is_named():
    fed = federation()
    keep = [client.train.y != 2 for client in fed.clients[:2]]
    clients = [
        replace(client, train=Split(client.train.x[rows], client.train.y[rows]))
        for client, rows in zip(fed.clients[:2], keep, strict=True)
    ]
    (line,) = fitted(replace(fed, clients=(*clients, fed.clients[2])), Fed3R()).warnings
    assert line == "class '2' (suva) is known to one client alone: its mean is that client's; give others samples of it"


def test_long_lists_are_cut():
    moments = Moments.of(torch.ones(8, 9, dtype=torch.float64), torch.arange(8) % 2, 0, 1, 2)
    facts = replace(Facts.of(federation()), columns=None)
    line = fit_warnings(replace(moments, counts=torch.full((2, 2), 2.0, dtype=torch.float64)), facts,
                        closed_form_recipes(trunk_of(federation()), facts)[0])[0]  # fmt: skip
    assert line.startswith("feature 0, feature 1, feature 2 and 6 more are constant")
