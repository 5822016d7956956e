"""The registry, the seeding and the refusals that all models have in common."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from feddrm.errors import FeddrmError
from feddrm.models import Identity, LeNet, Mlp, Model, Net, Onnx, ResNet18, ResNet18Retina
from feddrm.threads import without_onednn_if_small


def refusal(call) -> str:
    with pytest.raises(FeddrmError) as info:
        call()
    assert "\n" not in str(info.value)
    return str(info.value)


def test_the_family():
    trained = {"resnet18": ResNet18, "resnet18_retina": ResNet18Retina, "lenet": LeNet, "mlp": Mlp}
    assert Model.family == {**trained, "identity": Identity, "onnx": Onnx}
    assert Model.make("lenet", sharing="mid") == LeNet("mid")


def test_an_unknown_name_or_setting_is_answered_with_the_nearest():
    assert "unknown model 'resnet'; did you mean 'resnet18'?" in refusal(lambda: Model.make("resnet"))
    assert "did you mean 'sharing'?" in refusal(lambda: Model.make("lenet", shared="deep"))


def test_models_are_hashable_settings(cases):
    assert len({case.model for case in cases.values()}) == 8
    with pytest.raises(AttributeError):
        Mlp().branch = 3


def test_global_random_state_is_untouched(case, monkeypatch):
    on_gpu: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", on_gpu.append)
    torch.manual_seed(11)
    on_gpu.clear()
    before = torch.get_rng_state()
    case.model.build(case.shape, case.classes, 3, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert on_gpu == []


def test_weights_do_not_depend_on_global_state():
    want = Mlp().build((4,), 2, seed=5).state_dict()
    torch.manual_seed(99)
    with torch.device("meta"):
        got = Mlp().build((4,), 2, seed=5).state_dict()
    for leaf, value in want.items():
        assert torch.equal(value, got[leaf])


def test_networks_that_are_built_in_threads_have_the_weights_of_their_seed():
    seeds = [0, 1] * 100
    want = [Mlp().build((4,), 2, seed=seed).head.weight for seed in (0, 1)]
    with ThreadPoolExecutor(8) as pool:
        built = list(pool.map(lambda seed: Mlp().build((4,), 2, seed=seed).head.weight, seeds))
    assert all(torch.equal(weight, want[seed]) for seed, weight in zip(seeds, built, strict=True))


def test_a_network_is_tried_without_onednn(monkeypatch):
    """The clients of 'serve --demo' are forked after the router's network was built: they hung on ARM."""
    onednn, seen = torch.backends.mkldnn, []
    monkeypatch.setattr(Net, "embed", lambda net, x: seen.append(onednn.enabled) or (x[:, :64], {"embedding": x}))
    before = onednn.enabled
    Mlp().build((64,), 2)
    assert (seen, onednn.enabled) == ([False, False], before)


def test_a_network_is_built_while_another_thread_trains_with_onednn():
    """The trial of a network must not wait until that training ends."""
    begun, end, built = threading.Event(), threading.Event(), threading.Event()

    def train():
        with without_onednn_if_small(math.inf):
            begun.set()
            end.wait(10)

    def build():
        Mlp().build((4,), 2)
        built.set()

    threads = [threading.Thread(target=work, daemon=True) for work in (train, build)]
    threads[0].start()
    begun.wait(10)
    threads[1].start()
    assert built.wait(5)
    end.set()
    for thread in threads:
        thread.join(10)


def test_random_state_is_restored_after_a_failure(monkeypatch):
    def fail(*_):
        torch.rand(3)
        raise RuntimeError("broken")

    monkeypatch.setattr(Mlp, "network", fail)
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="broken"):
        Mlp().build((4,), 2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("classes", "clients", "seed", "message"),
    [
        (1, None, 0, "classes=1: a classifier needs at least two"),
        (0, 3, 0, "classes=0: a classifier needs at least two"),
        (2, 1, 0, "clients=1: a client branch needs at least two clients; give None for a network without one"),
        (2, 0, 0, "clients=0: a client branch needs at least two clients; give None for a network without one"),
        (2, 3, -1, "seed -1 is out of range: give one from 0 to 4294967295"),
        (2, 3, 2**32, "seed 4294967296 is out of range: give one from 0 to 4294967295"),
    ],
)
def test_impossible_numbers(case, classes, clients, seed, message):
    assert refusal(lambda: case.model.build(case.shape, classes, clients, seed)) == message


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 32), (3, 32, -1)])
def test_empty_samples(case, shape):
    assert refusal(lambda: case.model.check(shape, 2)) == (
        f"{case.model.name} cannot read samples of shape {shape}: give (channels, height, width) or (columns,)"
    )


@pytest.mark.parametrize("model", [ResNet18(), ResNet18Retina(), LeNet()], ids=lambda m: m.name)
@pytest.mark.parametrize("shape", [(64,), (32, 32), (128, 3, 32, 32)])
def test_image_models_refuse_other_samples(model, shape):
    assert refusal(lambda: model.check(shape, 2)) == (
        f"{model.name} reads images (channels, height, width), not samples of shape {shape}: "
        "use the model mlp, which reads anything"
    )
    Mlp().check(shape, 2)  # the remedy holds


@pytest.mark.parametrize("width", [0, -4, 1.5, "64"])
def test_impossible_widths(width):
    for model, shape in ((ResNet18(branch=width), (3, 32, 32)), (Mlp(branch=width), (3,))):
        message = f"branch={width!r}: a layer needs a whole number of units, at least one"
        assert refusal(lambda model=model, shape=shape: model.check(shape, 2)) == message


def flat(*layers: nn.Module, name: str = "embedding") -> nn.Sequential:
    return nn.Sequential(OrderedDict([(name, nn.Sequential(nn.Flatten(), nn.Linear(4, 4), *layers))]))


def heads(clients: int | None, **changes: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    branches = [("head", nn.Linear(4, 2))] + ([("client_head", nn.Linear(4, clients))] if clients else [])
    return [(nn.Identity(), changes.get(part, layer)) for part, layer in branches]


def fixed() -> nn.Sequential:
    return flat(nn.Linear(4, 4).requires_grad_(False))


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


def repeated() -> nn.Sequential:
    layer = nn.Linear(4, 4)
    return flat(layer, nn.ReLU(), layer)


BUFFER = "BatchNorm mixes the samples of a batch and keeps their means: use GroupNorm or LayerNorm"
LINEAR = "is no Linear layer with a bias: put other layers into the projection before"


@pytest.mark.parametrize(
    ("network", "problem"),
    [
        (
            lambda _: nn.Linear(4, 2),
            "network() returns Linear: return feddrm.models.Net(trunk, class branch, client branch)",
        ),
        (
            lambda m: Net(flat(name="0"), *heads(m)),
            "the trunk's last layer must be named 'embedding' (there are: 0): give an OrderedDict",
        ),
        (
            lambda _: Net(flat(), *heads(None)),
            "there is no client branch: give Net one exactly where network() gets a number of clients",
        ),
        (lambda m: Net(flat(), *heads(m, head=nn.Sequential(nn.Linear(4, 2)))), f"the head over classes {LINEAR}"),
        (lambda m: Net(flat(), *heads(m, client_head=nn.Linear(4, 3, bias=False))), f"the head over clients {LINEAR}"),
        (
            lambda m: Net(flat(), *heads(m, head=nn.Linear(4, 5))),
            "the head over classes has 5 outputs: there are 2 classes",
        ),
        (
            lambda m: Net(flat(), *heads(m, client_head=nn.Linear(4, 5))),
            "the head over clients has 5 outputs: there are 3 clients",
        ),
        (lambda m: Net(flat(nn.BatchNorm1d(4)), *heads(m)), BUFFER),
        (lambda m: Net(flat(nn.BatchNorm1d(4, track_running_stats=False)), *heads(m)), BUFFER),
        (
            lambda m: Net(flat(nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True)), *heads(m)),
            "the buffer 'trunk.embedding.3.running_mean' is neither trained nor sent: make it a Parameter, or compute "
            "it in forward",
        ),
        (
            lambda m: Net(repeated(), *heads(m)),
            "'trunk.embedding.4.weight' is a leaf that has another name, too: use every layer once",
        ),
        (
            lambda m: Net(fixed(), *heads(m)),
            "'trunk.embedding.2.weight' has requires_grad=False, which has no effect: the method's Phase(train=...) "
            "fixes leaves",
        ),
        (
            lambda m: Net(flat(nn.Linear(7, 4)), *heads(m)),
            "it cannot read samples of shape (4,) (mat1 and mat2 shapes cannot be multiplied (2x4 and 7x4)): correct "
            "its layers",
        ),
        (
            lambda m: Net(flat(nn.Unflatten(1, (1, 4))), *heads(m)),
            "its class logits of 2 samples have the shape (2, 1, 2): let its trunk or projection give one row per "
            "sample, such as the mean over positions",
        ),
        (
            lambda m: Net(flat(nn.LazyLinear(4)), *heads(m)),
            "'trunk.embedding.2' has no size before the first sample: use a layer that is given its sizes, as "
            "Linear(8, 4)",
        ),
        (
            lambda m: Net(flat(Centred()), *heads(m)),
            "its answer about a sample depends on the others of the batch: normalise every sample by itself",
        ),
        (
            lambda m: Net(flat(nn.Dropout(0.5)), *heads(m)),
            "it draws random numbers in forward, so no run could be repeated or resumed: leave Dropout out",
        ),
    ],
)
def test_a_network_that_cannot_be_trained_in_a_federation_is_refused(monkeypatch, network, problem):
    monkeypatch.setattr(Mlp, "network", lambda _self, _shape, _classes, clients: network(clients))
    before = torch.get_rng_state()
    assert refusal(lambda: Mlp().build((4,), 2, 3)) == f"model 'mlp': {problem}"
    assert torch.equal(torch.get_rng_state(), before)


def test_a_client_branch_without_clients_is_refused(monkeypatch):
    monkeypatch.setattr(Mlp, "network", lambda *_: Net(flat(), *heads(3)))
    assert refusal(lambda: Mlp().build((4,), 2)).startswith("model 'mlp': there is a client branch without clients: ")


class Tokens(nn.Module):
    """The mean embedding of a sequence of tokens, which arrive as floats."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x.long()).mean(1)


def test_a_network_of_tokens_is_tried_on_tokens(monkeypatch):
    def build(*layers: nn.Module) -> Net:
        trunk = nn.Sequential(OrderedDict(embedding=nn.Sequential(Tokens(), *layers)))
        monkeypatch.setattr(Mlp, "network", lambda *_: Net(trunk, *heads(None)))
        return Mlp().build((6,), 2)

    assert build()(torch.full((3, 6), 4.0)).logits.shape == (3, 2)
    assert "depends on the others of the batch" in refusal(lambda: build(Centred()))
