"""The end of a run: the router's fit and the last message, with sites that are away or refuse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from deployment import NAMES, QUICK_ROUTING, Deployed, DirectTransport, fit_steps
from feddrm.data.sources.labelled_samples import Division, divide
from feddrm.deploy import cluster_status
from feddrm.deploy.provision.members import remove_site
from feddrm.deploy.server.status import ServerStatus
from feddrm.deploy.wire.messages import Message, pack, unpack
from feddrm.drm import DensityRatioModel, inference
from feddrm.errors import FeddrmError
from feddrm.evaluation import answer_metrics, class_confusion
from feddrm.report.report_page import report_page
from feddrm.report.run_record import RunRecord
from feddrm.report.run_table import report_table
from feddrm.router import load_router
from feddrm.runs.run_membership import leave_run_router
from refusal import refused

pytestmark = pytest.mark.slow

Make = Callable[..., Deployed]
PATIENCE = 3  # of the server here; tests/deploy/server/test_waiting.py has the real one


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that refuses stops the run sooner."""
    monkeypatch.setattr("feddrm.deploy.server.waiting.PATIENCE", PATIENCE)


@pytest.mark.parametrize("router", [True, False], ids=["fit", "end"])
@pytest.mark.usefixtures("little_patience")
def test_the_server_gives_up_with_a_reason_and_continues_when_the_data_are_back(router: bool, deployed: Make) -> None:
    deployment = deployed(router=router, routing=QUICK_ROUTING)
    server = deployment.server()
    sizes = server.run_spec().sizes
    deployment.give_share("lima", 2)
    waited: list[str] = []
    status = ServerStatus(deployment.folder / "server")

    def on_event(event: str, details: Mapping[str, Any]) -> None:
        status.record(event, details)
        if event == "waiting":
            waited.append(details["for"])

    server.channel.on_event = on_event
    reason = f"holds {sizes[2]} samples, this run began with {sizes[1]}: put them back, or start a new run"
    with refused(f"lima: {reason}", "'feddrm deploy run' goes on from here"):
        server.go()
    assert waited == [f"lima ({reason})"] * (PATIENCE - 1), "what 'deploy status' shows meanwhile"
    assert (cluster_status.status(deployment.folder)["complaint"] or "").endswith(f" lima: {reason}")
    deployment.give_share("lima", 1)
    deployment.server().go()
    summary = json.loads((server.folder / "summary.json").read_text())
    assert (summary["rounds"], summary["accepted"]["lima"], bool(summary["router"])) == (2, 0, router)


@pytest.mark.usefixtures("little_patience")
def test_the_server_waits_for_a_site_that_is_away_longer_than_for_one_that_refuses(deployed: Make) -> None:
    deployment = deployed(few=True, routing=QUICK_ROUTING)
    away = range(5, 5 + 2 * PATIENCE)
    transport = DirectTransport(deployment.folder, away=lambda name, count: name == "lima" and count in away)
    deployment.server(transport).go()
    assert transport.asked > away[-1]
    assert not deployment.complaints


@pytest.mark.usefixtures("little_patience")
def test_a_site_that_refuses_one_step_of_the_fit_again_and_again_stops_the_run(
    deployed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it answers the steps before."""
    deployment = deployed(few=True, routing=QUICK_ROUTING)
    lima = deployment.site("lima")
    answer = lima._fit

    def refuse(request: Any) -> bytes:
        if request.header["step"] == "evaluate":
            raise FeddrmError("no sums today")
        return answer(request)

    monkeypatch.setitem(lima._handlers, "fit", refuse)
    with refused("lima: no sums today", f"{PATIENCE} times"):
        deployment.server().go()


@pytest.mark.usefixtures("little_patience")
@pytest.mark.parametrize(("few", "step", "refused_at_least"), [(True, "evaluate", 1), (False, "gradient", 5)])
def test_refusals_that_the_fit_can_do_without_do_not_count(
    few: bool, step: str, refused_at_least: int, deployed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that has lost the beginning of the fit refuses its messages, until the fit begins again.

    Round by round the fit goes on without the site as long as it can. In few messages it begins again at once.
    """
    deployment = deployed(few=True, routing={"features": "raw", "path_rounds": 6, "rounds": 6, "few_messages": few})
    lima = deployment.site("lima")
    answer, steps = lima._fit, list[str]()

    def forget(request: Any) -> bytes:
        steps.append(request.header["step"])
        if steps.count("fold_moments") == 1 and step in steps:
            raise FeddrmError("this site has not heard of the fit")
        return answer(request)

    monkeypatch.setitem(lima._handlers, "fit", forget)
    deployment.server().go()
    assert len(deployment.complaints) >= refused_at_least
    assert (len(deployment.complaints) == 1) == few
    assert steps.count("fold_moments") == 2
    traffic = json.loads((deployment.run / "router_traffic.json").read_text())
    assert traffic["messages"] == len(steps)
    assert min(traffic["bytes_to_a_site"], traffic["bytes_from_a_site"]) > 100 * len(steps)


def test_the_server_sleeps_while_all_sites_are_away_from_the_fit(deployed: Make) -> None:
    deployment = deployed(few=True, routing=QUICK_ROUTING)
    transport = DirectTransport(deployment.folder, away=lambda name, count: count in (8, 9))
    server, slept = deployment.server(transport), list[float]()
    server.waiting.sleep = slept.append
    server.go()
    assert len(slept) == 2
    assert (deployment.run / "router" / "manifest.json").exists()


@pytest.mark.parametrize("data", ["digits", pytest.param("heart", marks=pytest.mark.data)])
def test_metrics_of_the_sites_answers_are_those_of_pooled_samples(
    data: str, deployed: Make, request: pytest.FixtureRequest
) -> None:
    """From counts exactly, from sums to the last digits, AUROC within the bound that is stated."""
    deployment = deployed(router=False)
    if data == "heart":
        request.getfixturevalue("real_data")
        for number, name in enumerate(deployment.settings.clients):
            deployment.change_site(name, data={"dataset": "heart", "client": number})
    server = deployment.server()
    server.go()
    summary, spec = server.run.summary(), server.run_spec()
    measured = summary["metrics"]["own"]
    logits, labels, origin = [], [], []
    for number, name in enumerate(spec.names):
        run = deployment.site(name)._run_of(Message({"brief": spec.as_dict()}, {}))
        shared = load_file(deployment.run / "router" / "shared.safetensors")
        logits.append(run.test_logits(run.method.send(shared, number), run.private_slots(spec.plan["rounds"])))
        labels.append(run.client.test.y)
        origin.append(torch.full_like(labels[-1], number))
    answers, y = torch.cat(logits).double().log_softmax(1), torch.cat(labels)
    expected = answer_metrics(answers, y, torch.cat(origin), spec.names)
    assert set(measured) == set(expected)
    assert ("sensitivity" in measured) == (len(spec.classes) == 2)
    for name in set(measured) - {"auroc", "brier", "ece"}:
        assert measured[name]["value"] == expected[name]["value"]
    assert measured["worst_client"]["name"] == expected["worst_client"]["name"]
    for name in ("brier", "ece"):
        assert measured[name]["value"] == pytest.approx(expected[name]["value"], abs=1e-12)
    bound = measured["auroc"]["error_bound"]
    assert 0 < bound < 0.01
    assert abs(measured["auroc"]["value"] - expected["auroc"]["value"]) <= bound
    assert measured["accuracy"]["value"] == summary["average_accuracy"]
    detail = server.run.read_json(server.run.evaluation_file)
    assert detail["class_confusion"]["own"] == class_confusion(answers.argmax(1), y, len(spec.classes)).tolist()
    record = RunRecord.read(deployment.run)
    assert record.metrics["own", "auroc"].error_bound == bound
    assert [client.name for client in record.clients] == list(spec.names)
    page = report_page(report_table([deployment.run]))
    shown = ["AUROC", "error at most", "Balanced accuracy", "Brier", "Worst client", "Confusion"]
    assert [text for text in shown if text.lower() not in page.lower()] == []


def test_no_sums_of_answers_leave_the_sites_of_a_private_run(deployed: Make) -> None:
    deployment = deployed(router=False, training={"method": "fedavg"}, privacy={"clip": 1.0, "noise": 1.0})
    transport = DirectTransport(deployment.folder)
    server = deployment.server(transport)
    server.go()
    last = [unpack(signed[2 + int.from_bytes(signed[:2], "big") :]) for _, _, signed in transport.messages[-6:]]
    assert [message.tensors for message in last if "kind" not in message.header] == [{}] * 3
    assert "metrics" not in server.run.summary()
    assert not server.run.evaluation_file.exists()


@pytest.mark.parametrize("reason", ["an older version", "refused"])
def test_a_run_with_a_site_that_sends_no_sums_ends_without_metrics_and_names_it(
    reason: str, deployed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = deployed(router=False)
    if reason == "refused":
        deployment.change_site("lima", share={"metrics": False})
    else:
        lima = deployment.site("lima")
        finish = lima._finish
        monkeypatch.setitem(lima._handlers, "finish", lambda request: pack(unpack(finish(request)).header))
    transport = DirectTransport(deployment.folder)
    server = deployment.server(transport)
    server.go()
    sent = {name: unpack(signed[2 + int.from_bytes(signed[:2], "big") :]) for _, name, signed in transport.messages}
    assert {name: bool(message.tensors) for name, message in sent.items()} == {
        "oslo": True,
        "lima": False,
        "pune": True,
    }
    assert not deployment.complaints
    summary = server.run.summary()
    assert "metrics" not in summary
    assert summary["without_metrics"] == ["lima"]
    assert 0 < summary["average_accuracy"] < 1
    assert RunRecord.read(deployment.run).metrics == {}


def test_a_server_that_crashed_after_the_fit_does_not_fit_again(deployed: Make) -> None:
    deployment = deployed(few=True, routing={**QUICK_ROUTING, "rounds": 2})
    deployment.server().go()
    first = deployment.server().run.summary()
    (deployment.run / "summary.json").unlink()
    transport = DirectTransport(deployment.folder)
    deployment.server(transport).go()
    assert transport.asked == 2  # hello, and the last message
    again = deployment.server().run.summary()
    assert again.pop("audit")["lines"] > first.pop("audit")["lines"], "the trail tells of the restart"
    assert again == first


@pytest.mark.parametrize("name", ["manifest.json", "router.safetensors"])
def test_a_damaged_router_of_a_run_that_has_not_ended_is_fitted_again(name: str, deployed: Make) -> None:
    """The run failed with the advice to use 'feddrm fit-router', which refuses such a run."""
    deployment = deployed(few=True, routing={**QUICK_ROUTING, "rounds": 2})
    deployment.server().go()
    (deployment.run / "summary.json").unlink()
    path, weight = deployment.run / "router" / name, load_router(deployment.run / "router").weight
    path.write_bytes(path.read_bytes()[:100])
    deployment.server().go()
    for folder in (deployment.run, *map(deployment.site_folder, NAMES)):
        assert load_router(folder / "router").weight.equal(weight)
    assert deployment.server().run.summary() is not None
    (complaint,) = deployment.complaints
    assert complaint.startswith(f"{path} is ")
    assert complaint.endswith(": the router is fitted again")


def test_a_server_that_was_killed_before_its_router_took_its_place_sends_all_of_it(deployed: Make) -> None:
    deployment = deployed(few=True, routing={**QUICK_ROUTING, "rounds": 2})
    deployment.server().go()
    router = deployment.run / "router"
    (deployment.run / "summary.json").unlink()
    commit, weight = (router / ".commit").read_text(), load_router(router).weight
    for name in ("router.safetensors", "manifest.json"):
        (router / name).rename(router / f".{name}.{commit}.new")
    shutil.rmtree(deployment.site_folder("lima") / "router")
    transport = DirectTransport(deployment.folder)
    deployment.server(transport).go()
    assert transport.asked == 2, "hello, and the last message: nothing is fitted again"
    assert load_router(deployment.site_folder("lima") / "router").weight.equal(weight)
    assert not list(router.glob(".*.new"))


def test_without_a_removed_site_no_router_is_fitted_and_the_run_ends(deployed: Make) -> None:
    """The site goes in the midst of the fit."""
    deployment = deployed(few=True, routing=QUICK_ROUTING)

    class Removing(DirectTransport):
        def ask(self, *arguments: Any) -> dict[int, bytes]:
            replies = super().ask(*arguments)
            if self.asked == 5:
                remove_site(deployment.folder / "server", "lima")
            return replies

    server = deployment.server(Removing(deployment.folder))
    server.go()
    assert (server.run.summary()["router"], server.run.summary()["removed"]) == (None, ["lima"])
    assert deployment.complaints[-1] == "no router is fitted: lima was removed during the run: start another 'run'"


def test_a_removed_site_leaves_the_router_of_a_finished_run_by_the_named_command(deployed: Make) -> None:
    deployment = deployed(few=True, routing=QUICK_ROUTING)
    server = deployment.server()
    server.go()
    assert remove_site(deployment.folder / "server", "lima").router
    leave_run_router(server.run, ["lima"], None)
    assert load_router(server.run.router).names == ("oslo", "pune")


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "masked"])
def test_sites_are_compared_as_in_one_process(secure: bool, deployed: Make) -> None:
    """Every population at its own site: the density ratio model of the pooled tables, from sums."""
    deployment = deployed(comparison={"basis": "gamma", "columns": ["age"]}, router=False, secure_aggregation=secure)
    rng, ages = np.random.default_rng(0), {}
    for i, name in enumerate(NAMES):
        rows = pd.DataFrame({"age": rng.gamma(9 + i, 5, 60).round(1), "dose": rng.normal(size=60)})
        rows["ill"] = np.arange(60) % 2
        rows.to_csv(deployment.site_folder(name) / "visits.csv", index=False)
        deployment.change_site(name, data={"csv": "visits.csv", "label": "ill"})
        trained, _ = divide(name, {name: 60}, Division(0.3, 2025))[name]
        ages[name] = rows["age"].to_numpy()[trained].astype(np.float32).astype(float)
    transport = DirectTransport(deployment.folder)
    server, status, shown = deployment.server(transport), ServerStatus(deployment.folder / "server"), []

    def on_event(event: str, details: Mapping[str, Any]) -> None:
        status.record(event, details)
        if event == "comparing the sites":
            shown.append(status.entry["what"])

    server.channel.on_event = on_event
    server.go()
    found = json.loads((deployment.run / "summary.json").read_text())["comparison"]
    fit = DensityRatioModel("gamma").fit(ages)
    tilts = inference.tilts(fit)
    assert found["populations"] == {name: len(x) for name, x in ages.items()}
    np.testing.assert_allclose(list(found["tilts"].values()), tilts.value, atol=1e-6)
    np.testing.assert_allclose(list(found["standard_errors"].values()), tilts.error, atol=1e-6)
    steps = fit_steps(transport)
    assert shown == ["comparing the sites"] * len(steps), "what 'deploy status' says meanwhile"
    assert (steps[0], set(steps[1:-1]), steps[-1]) == ("fold_moments", {"evaluate"}, "score_scatter")
    assert len(steps) <= 12
    everything = b"".join(content for _, _, content in transport.messages)
    assert not [x for xs in ages.values() for x in xs if np.float32(x).tobytes() in everything]


def test_a_comparison_that_cannot_be_is_refused_before_training_or_said_in_the_summary(deployed: Make) -> None:
    deployment = deployed(comparison={"basis": "normal"}, router=False)
    with refused("samples of shape [1, 8, 8] are no rows of a table"):
        deployment.server().go()
    for i, name in enumerate(NAMES):
        lines = "\n".join(f"{100 * i + k / 7},{k % 2}" for k in range(30))
        (deployment.site_folder(name) / "visits.csv").write_text(f"age,ill\n{lines}\n")
        deployment.change_site(name, data={"csv": "visits.csv", "label": "ill"})
    deployment.server().go()
    found = json.loads((deployment.run / "summary.json").read_text())["comparison"]
    assert "no finite optimum" in found["problem"]
    assert any("no comparison: " in text for text in deployment.complaints)
