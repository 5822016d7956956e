from __future__ import annotations

import builtins
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from feddrm.data import Federation, load
from feddrm.io.run_files import ClientFiles
from feddrm.models import Mlp
from feddrm.predictor.predictor import Predictor, class_names
from feddrm.router import load_router
from feddrm.router.answer_calibration import AnswerCalibration
from feddrm.runs import Run, train
from feddrm.runs.run_membership import leave_run_router
from photographs import allow_views
from refusal import refused

pytestmark = pytest.mark.slow

Images = NDArray[np.uint8]


@pytest.fixture(scope="module")
def images() -> Images:
    return np.concatenate([client.test.x.numpy() for client in load("digits", clients=3, seed=3).clients])


def test_predictions_have_the_accuracy_that_the_run_measured(run: Path, images: Images) -> None:
    """Every client answers its own test samples: the run's average accuracy."""
    digits = load("digits", clients=3, seed=3)
    summary = Run.open(run).summary
    assert summary is not None
    right = total = 0.0
    for client, weight in zip(digits.clients, digits.weights.tolist(), strict=True):
        predictor = Predictor.load(run / "clients" / client.name)
        (found,) = predictor([("inputs", client.test.x.numpy())])
        right += weight * float((found.argmax(1) == client.test.y.numpy()).mean())
        total += weight
    assert total == pytest.approx(1)
    metrics = Run.open(run).metrics()[-1]
    assert right == pytest.approx(metrics["average_accuracy"], abs=1e-6)


def test_the_refitted_head_gives_probabilities_that_differ_a_little(run: Path, images: Images) -> None:
    trained = Predictor.load(run / "clients" / "fax")
    refit = Predictor.load(run / "clients" / "fax", answer="refit")
    (a,), (b,) = trained([("inputs", images)]), refit([("inputs", images)])
    np.testing.assert_allclose(b.sum(1), 1)
    assert 0.3 < float((a.argmax(1) == b.argmax(1)).mean()) < 1


def assert_same_by_features(run: Path, images: Images, answer: str) -> None:
    predictor = Predictor.load(run / "clients" / "fax", answer=answer)
    features = load_router(run / "router").features(torch.from_numpy(images)).numpy()
    (a, b) = predictor([("inputs", images), ("features", features)])
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def forget_the_fit(run: Path) -> None:
    """As older versions wrote the manifest."""
    path = run / "router" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["notes"].pop("fit", None)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("answer", ["trained", "refit"])
def test_answers_have_the_temperature_of_the_clients_test_samples(run: Path, answer: str, tmp_path: Path) -> None:
    for client in load("digits", clients=3, seed=3).clients:
        copy = Path(shutil.copytree(run, tmp_path / client.name))
        folder = copy / "clients" / client.name
        predictor = Predictor.load(folder, answer=answer)
        logits = predictor.head.samples(client.view(client.test.x)).double()
        assert (
            predictor.head.calibration.temperature
            == pytest.approx(AnswerCalibration.fit(logits, client.test.y).temperature, rel=1e-3)
            != 1
        )
        (probabilities,) = predictor([("inputs", client.test.x.numpy())])
        expected = (logits / predictor.head.calibration.temperature).softmax(1)
        assert np.allclose(probabilities, expected.numpy(), atol=1e-5)
        assert np.array_equal(probabilities.argmax(1), logits.argmax(1).numpy())
        # A run from before temperatures: it answers as it did.
        files = ClientFiles(folder)
        files.temperature_file.unlink()
        correction = load_file(files.head_file)["correction"]
        save_file({"correction": correction}, files.head_file)
        forget_the_fit(copy)
        assert Predictor.load(folder, answer=answer).head.calibration.temperature == 1


def test_a_head_of_another_fit_is_refused(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    Run.open(copy).fit_router(features="raw", joint=False, rounds=5, path_rounds=2)
    assert Predictor.load(copy / "clients" / "fax", answer="refit").fit != Predictor.load(copy / "clients" / "fax").fit
    shutil.copy(run / "clients" / "fax" / "head.safetensors", copy / "clients" / "fax")
    with refused("head.safetensors belongs to another fit", "feddrm fit-router", "--answer trained"):
        Predictor.load(copy / "clients" / "fax", answer="refit")
    with refused("head.safetensors belongs to another fit", "feddrm fit-router"):
        Run.open(copy).evaluate()
    Predictor.load(copy / "clients" / "fax")  # the trained model belongs to no fit
    Predictor.load(copy / "clients" / "flatbed", answer="refit")
    forget_the_fit(copy)
    with refused("belongs to another fit", "the router's is without a name"):
        Predictor.load(copy / "clients" / "flatbed", answer="refit")


def test_heads_stay_usable_when_a_client_leaves_the_router(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    leave_run_router(Run.open(copy).folder, ["flatbed"])
    before, after = (Predictor.load(folder / "clients" / "fax", answer="refit") for folder in (run, copy))
    assert before.fit == after.fit is not None


def test_features_give_the_same_answer_as_the_sample(run: Path, images: Images) -> None:
    assert_same_by_features(run, images, "trained")


def test_features_give_the_same_answer_of_a_refitted_head(tmp_path: Path, images: Images) -> None:
    """Router and heads both use the raw values."""
    digits = load("digits", clients=3, seed=3)
    settings = {"rounds": 1, "local_steps": 2, "batch_size": 16, "model": Mlp(hidden=(16,), branch=8)}
    run = train(digits, "local", out=tmp_path / "run", **settings)
    run.fit_router(features="raw", joint=False, rounds=5, path_rounds=2)
    assert_same_by_features(tmp_path / "run", images, "refit")


def test_features_of_another_recipe_are_one_line(run: Path, images: Images) -> None:
    features = load_router(run / "router").features(torch.from_numpy(images)).numpy()
    refit = Predictor.load(run / "clients" / "fax", answer="refit")
    assert refit.head.recipe.name != refit.router.recipe.name
    with refused("refit head of client 'fax'", "router's features (embedding)", "give the samples themselves"):
        refit([("inputs", images), ("features", features)])
    trained = Predictor.load(run / "clients" / "fax")
    for other in (features[:, 1:], images.reshape(len(images), -1).astype(np.float32)):
        with refused(f"{other.shape[1]} features per sample", "fitted on 16 (embedding)", "Router.features"):
            trained([("features", features), ("features", other)])


def test_a_query_gets_the_same_answer_alone_and_in_a_batch(run: Path, images: Images) -> None:
    predictor = Predictor.load(run / "clients" / "fax")
    queries = [
        ("inputs", images[:3]),
        ("inputs", predictor.router.inputs(torch.from_numpy(images[3:5])).numpy()),
        ("inputs", images[5:9]),
    ]
    batch = predictor(queries)
    for query, answer in zip(queries, batch, strict=True):
        np.testing.assert_allclose(predictor([query])[0], answer, rtol=1e-5, atol=1e-6)


def test_no_other_clients_files_are_opened(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    for place in (builtins, io):
        real = place.open

        def spy(file: Any, *args: Any, real: Any = real, **kwargs: Any) -> Any:
            opened.append(str(file))
            return real(file, *args, **kwargs)

        monkeypatch.setattr(place, "open", spy)
    Predictor.load(run / "clients" / "fax", answer="refit")
    Predictor.load(run / "clients" / "fax")
    assert any("private.safetensors" in name for name in opened)
    assert not [name for name in opened if "clients/" in name and "clients/fax/" not in name]
    assert not [leaf for leaf in load_file(run / "clients" / "fax" / "private.safetensors") if "trunk" in leaf]


def test_a_method_with_private_models_can_be_served_but_takes_no_features(tmp_path: Path, images: Images) -> None:
    digits = load("digits", clients=3, seed=3)
    small = {"rounds": 2, "local_steps": 2, "batch_size": 8, "model": Mlp(hidden=(8,), branch=8)}
    train(digits, "ditto", out=tmp_path / "run", **small).fit_router(features="raw", heads=False)
    predictor = Predictor.load(tmp_path / "run" / "clients" / "fax")
    assert not predictor.takes_features
    assert predictor([("inputs", images[:2])])[0].shape == (2, 10)
    with refused("fit-router"):
        Predictor.load(tmp_path / "run" / "clients" / "fax", answer="refit")


def test_wrong_folders_and_answers_are_errors(run: Path, tmp_path: Path) -> None:
    with refused("no client's folder", "RUN/clients/NAME"):
        Predictor.load(run)
    stranger = tmp_path / "clients" / "quito"
    stranger.mkdir(parents=True)
    (stranger / "private.safetensors").write_bytes((run / "clients" / "fax" / "private.safetensors").read_bytes())
    with refused("quito", "flatbed, negative, fax"):
        Predictor.load(stranger, run)
    with refused("no router"):
        Predictor.load(stranger)
    with refused("guess", "trained or refit"):
        Predictor.load(run / "clients" / "fax", answer="guess")
    assert class_names(tmp_path, 3) == ("0", "1", "2")


def test_a_missing_value_is_named(tmp_path: Path) -> None:
    rows, labels = np.arange(80.0).reshape(20, 4), np.arange(20) % 2
    federation = Federation.from_arrays({"oslo": (rows, labels), "lima": (rows + 1, labels)})
    own = train(federation, "fedavg", rounds=1, out=tmp_path / "run")
    rows[3, 2] = np.nan
    with refused("sample 3 has a missing or infinite value: complete it, or leave it out"):
        own.predict(rows, client="oslo")


@pytest.mark.parametrize("answer", ["trained", "refit"])
def test_views_average_logits_before_the_temperature(run: Path, images: Images, tmp_path: Path, answer: str) -> None:
    """So the label does not depend on the temperature, and evaluation counts what is served."""
    folder = allow_views(run, tmp_path / "run") / "clients" / "fax"
    predictor = Predictor.load(folder, answer=answer, views=4)
    assert predictor.head.calibration.temperature != 1
    x = predictor.router.inputs(torch.from_numpy(images))
    logits = torch.stack([predictor.head.samples(view) for view in predictor.views(x)]).mean(0)
    expected = (logits.double() / predictor.head.calibration.temperature).softmax(1).numpy()
    (found,) = predictor([("inputs", images)])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)
    (alone,) = Predictor.load(folder, answer=answer)([("inputs", images)])
    assert (alone.argmax(1) != found.argmax(1)).any()


def test_views_leave_features_as_they_are(run: Path, images: Images, tmp_path: Path) -> None:
    copy = allow_views(run, tmp_path / "run")
    features = load_router(copy / "router").features(torch.from_numpy(images)).numpy()
    found = [Predictor.load(copy / "clients" / "fax", views=k)([("features", features)])[0] for k in (1, 4)]
    np.testing.assert_array_equal(*found)


def test_views_that_the_data_do_not_allow_are_refused(run: Path) -> None:
    with refused("views=4: these data allow no crops and no mirror images of a sample: leave views out"):
        Predictor.load(run / "clients" / "fax", views=4)


@pytest.mark.parametrize("answer", ["trained", "refit"])
def test_label_sets_hold_the_labels_of_the_scores_they_come_from(run: Path, answer: str) -> None:
    """Of the n samples behind the scores, a set with a miss of k / (n + 1) leaves out at most k."""
    for client in load("digits", clients=3, seed=3).clients:
        predictor = Predictor.load(run / "clients" / client.name, answer=answer)
        (probabilities,) = predictor([("inputs", client.test.x.numpy())])
        for missed in (1, 5, 20):
            sets = predictor.label_sets(probabilities, missed / (len(client.test.y) + 1))
            out = sum(str(int(y)) not in labels for y, labels in zip(client.test.y, sets, strict=True))
            assert out == pytest.approx(missed, abs=1)  # probabilities are float32: one may fall on the other side
        assert predictor.label_sets(probabilities, 1e-9) == [list(predictor.classes)] * len(probabilities)
        with refused("label_miss=2", "between 0 and 1"):
            predictor.label_sets(probabilities, 2)


def test_a_client_from_before_label_sets_names_the_remedy(run: Path, tmp_path: Path, images: Images) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    file = ClientFiles(copy / "clients" / "fax").temperature_file
    file.write_text(json.dumps({"temperature": json.loads(file.read_text())["temperature"]}))
    predictor = Predictor.load(copy / "clients" / "fax")
    (probabilities,) = predictor([("inputs", images)])
    with refused("client 'fax' has no scores for label sets", "feddrm fit-router"):
        predictor.label_sets(probabilities, 0.1)
