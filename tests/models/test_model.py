"""The registry, the seeding and the refusals that all models have in common."""

from __future__ import annotations

import pytest
import torch

from feddrm.errors import FeddrmError
from feddrm.models import Identity, LeNet, Mlp, Model, Onnx, ResNet18, ResNet18Retina


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
