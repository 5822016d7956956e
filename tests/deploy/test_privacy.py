"""Differential privacy: clipping, noise, and their cost in epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy.stats import kstest, norm

from deployment import Deployed
from feddrm.deploy.privacy import Privacy, PrivacyDemand, UploadCount
from feddrm.errors import SettingError
from feddrm.methods import Method
from refusal import refused


def exact_delta(epsilon: float, mu: float) -> float:
    """The exact delta of the Gaussian mechanism with sensitivity over deviation ``mu`` (Balle and Wang, 2018)."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize(("noise", "uploads"), [(2.0, 1), (8.0, 10), (50.0, 40), (200.0, 1)])
def test_epsilon_is_a_close_upper_bound(noise: float, uploads: int) -> None:
    privacy = Privacy(clip=1.0, noise=noise, delta=1e-5)
    epsilon = privacy.epsilon(uploads)
    mu = 2 / noise * math.sqrt(uploads)  # k Gaussian releases are one with sqrt(k) times the sensitivity
    assert exact_delta(epsilon, mu) <= 1e-5
    assert exact_delta(0.85 * epsilon, mu) > 1e-5
    assert privacy.epsilon(uploads + 1) > epsilon
    assert privacy.epsilon(0) == 0
    assert Privacy(clip=1.0, noise=1e6, delta=0.5).epsilon(1) == 0, "never below zero"


@pytest.mark.parametrize(
    ("noise", "uploads", "renyi", "exact"),
    [
        (2.0, 1, 4.728917801378043, 4.37717810002493),
        (8.0, 10, 3.6171572323443586, 3.341409471859205),
        (50.0, 40, 1.0254859681942754, 0.9384698564677924),
        (3.0, 40, 27.811994947226303, 26.182942963157704),
    ],
)
def test_epsilon_is_that_of_dp_accounting(noise: float, uploads: int, renyi: float, exact: float) -> None:
    """Figures of dp-accounting 0.6.0: its Rényi accountant with the same orders, its privacy loss distributions."""
    assert Privacy(clip=1.0, noise=noise).epsilon(uploads) == pytest.approx(renyi, rel=1e-12)
    assert exact < renyi < 1.1 * exact
    oracle = pytest.importorskip("dp_accounting")
    event = oracle.GaussianDpEvent(noise / 2)  # replacing all samples changes an upload by up to twice the clip
    accountant = oracle.rdp.RdpAccountant([1 + 10 ** (k / 50) for k in range(-200, 200)])
    assert accountant.compose(event, uploads).get_epsilon(1e-5) == pytest.approx(renyi, rel=1e-12)
    assert oracle.pld.PLDAccountant().compose(event, uploads).get_epsilon(1e-5) == pytest.approx(exact, rel=1e-6)


def test_changes_are_clipped_and_get_noise() -> None:
    received = {"a": torch.zeros(20_000), "b": torch.ones(20_000)}
    upload = {"a": torch.full((20_000,), 3.0), "b": torch.full((20_000,), 5.0)}
    privacy = Privacy(clip=2.0, noise=0.5)
    sent = privacy.protect(upload, received)
    change = torch.cat([sent[leaf] - received[leaf] for leaf in sent]).double()
    clipped = torch.cat([upload[leaf] - received[leaf] for leaf in sent]).double()
    clipped *= 2.0 / clipped.norm()
    noise = change - clipped
    assert abs(float(noise.std()) - 1.0) < 0.03
    assert abs(float(noise.mean())) < 0.03
    again = privacy.protect(upload, received)
    assert not torch.equal(sent["a"], again["a"])


def test_the_clipped_change_is_added_to_what_was_received() -> None:
    """With next to no noise: a change of norm 5 keeps its direction and gets norm 2, one of norm 1 stays as it is."""
    received = {"a": torch.tensor([10.0, -10.0]), "b": torch.tensor([[7.0]])}
    privacy = Privacy(clip=2.0, noise=1e-12)
    sent = privacy.protect({"a": torch.tensor([13.0, -10.0]), "b": torch.tensor([[3.0]])}, received)
    assert sent["a"].tolist() == pytest.approx([10 + 3 * 2 / 5, -10.0])
    assert sent["b"].tolist() == [pytest.approx([7 - 4 * 2 / 5])]
    short = {"a": torch.tensor([10.6, -10.0]), "b": torch.tensor([[7.8]])}
    sent = privacy.protect(short, received)
    assert sent["a"].tolist() == pytest.approx(short["a"].tolist())
    assert sent["b"].tolist() == [pytest.approx([7.8])]
    assert all(sent[leaf].dtype == short[leaf].dtype for leaf in short)
    sent = replace(privacy, clip=0.5).protect(short, received)  # a norm below one is clipped as well
    assert sent["a"].tolist() == pytest.approx([10.3, -10.0])
    far = {"a": torch.tensor([1e30, -10.0]), "b": torch.tensor([[7.0]])}  # its square is no float32
    assert privacy.protect(far, received)["a"].tolist() == pytest.approx([12.0, -10.0])


def test_no_seed_repeats_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch seeds its generator with 32 bits: who tried them all would take the noise off an upload."""
    monkeypatch.setattr("secrets.randbits", lambda bits: 7)
    nothing, noises = {"a": torch.zeros(3, 3333), "b": torch.zeros(()), "c": torch.zeros(0)}, []
    for _ in range(2):
        torch.manual_seed(7)
        sent = Privacy(clip=2.0, noise=0.5).protect(nothing, nothing)
        assert [value.shape for value in sent.values()] == [value.shape for value in nothing.values()]
        noises.append(sent["a"].double().flatten())
    assert abs(float(torch.corrcoef(torch.stack(noises))[0, 1])) < 0.06  # five deviations of 9,999 independent pairs
    assert kstest(torch.cat(noises).numpy(), "norm").pvalue > 1e-6


@pytest.mark.parametrize(("byte", "normal"), [(b"\0", math.sqrt(2 * 53 * math.log(2))), (b"\xff", 0.0)])
def test_the_outermost_random_bytes_give_finite_noise(
    byte: bytes, normal: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The uniform numbers are from 2^-53 to 1: zero has no logarithm."""
    monkeypatch.setattr("secrets.token_bytes", lambda size: byte * size)
    nothing = {"a": torch.zeros(3, dtype=torch.float64)}
    assert Privacy(clip=2.0, noise=0.5).protect(nothing, nothing)["a"].tolist() == pytest.approx([normal, normal, 0.0])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("whose", ["upload", "received"])
def test_a_change_that_is_not_finite_is_not_sent(bad: float, whose: str) -> None:
    """One such leaf must not let the others pass without clipping."""
    tensors = {key: {"a": torch.zeros(3), "b": torch.zeros(1)} for key in ("upload", "received")}
    tensors["upload"]["a"] += 50
    tensors[whose]["b"] += bad
    with refused("is not sent", "lr"):
        Privacy(clip=1.0, noise=1e-6).protect(**tensors)


@pytest.mark.parametrize(
    "bad",
    [
        *({setting: value} for setting in ("clip", "noise", "delta") for value in (0, -1, math.inf, math.nan)),
        {"delta": 1},
    ],
)
def test_settings_that_promise_nothing_are_refused(bad: dict[str, float]) -> None:
    settings = Privacy(clip=0.5, noise=0.5, delta=0.5)
    settings.check(Method.make("fedavg"))
    with refused(*(f"{setting}={value}" for setting, value in bad.items()), "give positive numbers, delta below 1"):
        replace(settings, **bad).check()


def test_methods_with_statistics_beside_their_leaves_are_refused() -> None:
    """FedPAC and FedAS, as first published, send prototypes and Fisher traces."""
    for name in ("fedpac", "fedas"):
        method = Method.make(name, variant="original")
        assert method.extras()
        with pytest.raises(SettingError, match="beside its leaves"):
            Privacy(1.0, 1.0).check(method)


def test_uploads_of_all_runs_are_counted_together(tmp_path: Path) -> None:
    """Also uploads of different noise: two of noise 1 and one of noise 3 cost as much as 19 of noise 3."""
    uploads = UploadCount(tmp_path / "uploads.json")
    assert uploads.equivalent(3.0) == 0
    for noise in (1.0, 3.0, 1):
        uploads.add(noise)
    assert UploadCount(uploads.path).equivalent(3.0) == 19.0
    assert uploads.equivalent(1.0) == pytest.approx(19 / 9)
    assert Privacy(1.0, 3.0).epsilon(19.0) == pytest.approx(Privacy(1.0, 1.0).epsilon(uploads.equivalent(1.0)))


def test_a_broken_count_is_refused_and_not_begun_again(tmp_path: Path) -> None:
    """Counting from zero would promise too much."""
    uploads = UploadCount(tmp_path / "uploads.json")
    uploads.path.write_text('{"3.0": ')
    with refused("uploads.json is broken", "put it back from a copy"):
        uploads.add(3.0)


def test_a_demand_refuses_an_offer_below_it_and_an_upload_above_its_budget() -> None:
    demand = PrivacyDemand(clip=1.0, noise=3.0, budget=Privacy(1.0, 3.0).epsilon(2))
    for offer in ({"clip": 1.0, "noise": 3.0}, {"clip": 0.5, "noise": 4.0}):
        demand.check_offer(offer, "oslo")
    for less, words in (
        ({"clip": 2.0, "noise": 3.0}, "clip 2 and noise 3"),
        ({"clip": 1.0, "noise": 2.0}, "clip 1 and noise 2"),
        (None, "nothing"),
    ):
        with refused("oslo demands privacy", f"this run offers {words}"):
            demand.check_offer(less, "oslo")
    demand.check_budget(3.0, 2)
    with refused("above the budget"):
        demand.check_budget(3.0, 3)


@pytest.mark.slow
def test_another_run_continues_the_count(deployed: Callable[..., Deployed]) -> None:
    deployment = deployed(privacy={"clip": 1.0, "noise": 3.0})
    deployment.server().go()
    deployment.settings = replace(deployment.settings, run="second")
    deployment.restart_sites()
    deployment.server().go()
    spent = deployment.server().run.summary()["privacy"]["epsilon"]
    assert spent == dict.fromkeys(("oslo", "lima", "pune"), Privacy(1.0, 3.0).epsilon(4))


@pytest.mark.slow
def test_rounds_without_uploads_cost_nothing(deployed: Callable[..., Deployed]) -> None:
    """FedBABU uploads nothing in its last rounds."""
    training = {"method": "fedbabu", "rounds": 4}
    deployment = deployed(privacy={"clip": 1.0, "noise": 3.0}, training=training)
    deployment.server().go()
    spent = deployment.server().run.summary()["privacy"]["epsilon"]
    assert spent == dict.fromkeys(("oslo", "lima", "pune"), Privacy(1.0, 3.0).epsilon(3))


@pytest.mark.slow
def test_a_private_run_reports_its_cost_and_no_losses_or_accuracies(deployed: Callable[..., Deployed]) -> None:
    deployment = deployed(privacy={"clip": 1.0, "noise": 3.0})
    deployment.server().go()
    summary = deployment.server().run.summary()
    assert summary["privacy"]["delta"] == Privacy(1.0, 3.0).delta, "an epsilon means nothing without it"
    assert summary["privacy"]["epsilon"] == dict.fromkeys(("oslo", "lima", "pune"), Privacy(1.0, 3.0).epsilon(2))
    assert summary["router"] is None
    assert "average_accuracy" not in summary
    assert all(entry["loss"] is None for entry in deployment.server().run.metrics())
