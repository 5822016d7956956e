"""Plugins: files and installed packages, their record, and that no record ever executes anything."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.func import functional_call

import feddrm
import feddrm.methods.losses
from documentation import ROOT, blocks
from feddrm.data import Client, Dataset
from feddrm.engine import RoundResult
from feddrm.errors import FeddrmError, SettingError
from feddrm.methods import FedAvg, Method, Phase, Tensors
from feddrm.models import Model
from feddrm.plugins import load_configured, load_plugin, require_plugins, used_plugins, without_folders
from feddrm.rules import Rule
from plugin_files import forget, new_process, write_examples
from refusal import refused

METHOD = """
from dataclasses import dataclass
from typing import ClassVar
from feddrm.methods import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    "Mine"
    name: ClassVar[str] = "{}"
    strength: float = 1.0
"""


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with new_process(monkeypatch):
        yield


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def install(folder: Path, package: str, source: str, entry: str = "") -> None:
    """A package as pip leaves it: its module, and the folder with its name, its version and its entry point."""
    module = package.replace("-", "_")
    write(folder / f"{module}.py", source)
    info = folder / f"{module}-1.2.dist-info"
    info.mkdir()
    write(info / "METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    write(info / "entry_points.txt", f"[feddrm.plugins]\nmine = {entry or module}\n")


def test_the_examples_of_the_page_register_what_they_define(tmp_path: Path) -> None:
    for path in write_examples(tmp_path):
        feddrm.load_plugin(path)
    assert Method.find("fedmedian").summary() == "FedAvg with the median of the uploads in place of their mean"
    assert Model.make("narrow", width="4").build((3,), 2, None).sizes()["head"] == 10
    assert Dataset.make("blobs", patients=10).load().names == ("oslo", "lima", "pune")


# The page's words on SCAFFOLD's option II as a method.
OPTION_2 = """
@dataclass(frozen=True)
class Option2(Scaffold):
    name: ClassVar[str] = "scaffold"

    def phases(self, stage):
        return (Phase(stage.steps, corrected),)

    def begin(self, received, private):
        return {**super().begin(received, private), "sent": model(received)}

    def finish(self, slots, stage):
        CONTROL
        return {**slots["model"], **beside_the_model(control)}, {"control": control}
"""


def stop(result: RoundResult, *_: object) -> None:
    if result.state.round == 1:
        raise KeyboardInterrupt


def use_option_2(scaffold: Path) -> None:
    (control,) = (block for _, block in blocks("docs/extending.md", "text") if "stage.lr" in block)
    first = scaffold.read_text().replace('name: ClassVar[str] = "scaffold"', "")
    scaffold.write_text(first + OPTION_2.replace("CONTROL", control.replace("\n", "\n        ")))


@pytest.mark.parametrize("option", [1, 2])
def test_the_scaffold_of_the_page_computes_scaffold(tmp_path: Path, option: int) -> None:
    """Two rounds on whole clients, beside the equations of the publication; private state survives a stop."""
    write_examples(tmp_path)
    if option == 2:
        use_option_2(tmp_path / "scaffold.py")
    for name in ("blobs.py", "scaffold.py"):
        feddrm.load_plugin(tmp_path / name)
    federation = feddrm.load("blobs", seed=0)

    def train(**options: Any) -> feddrm.Run:
        plain = {"local_steps": 3, "batch_size": 64, "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "seed": 0}
        return feddrm.train(federation, "scaffold", model="narrow", rounds=2, out=tmp_path / "run", **plain, **options)

    with pytest.raises(KeyboardInterrupt):
        train(on_round=stop)
    found = load_file(train().folder.shared_file)

    net = Model.make("narrow").build((4,), 2, seed=0)
    x = {leaf: value.detach() for leaf, value in net.named_parameters()}
    mean = {leaf: torch.zeros_like(value) for leaf, value in x.items()}
    controls = [mean] * 3

    def gradient(leaves: Tensors, client: Client) -> Tensors:
        points = {leaf: value.clone().requires_grad_() for leaf, value in leaves.items()}
        loss = F.cross_entropy(functional_call(net, points, (client.train.x,)).logits, client.train.y)
        return dict(zip(points, torch.autograd.grad(loss, list(points.values())), strict=True))

    for rate in (0.1, 0.05):  # the cosine schedule
        models, fresh = [], []
        for client, control in zip(federation.clients, controls, strict=True):
            y, steps = x, []
            for _ in range(3):
                steps.append(gradient(y, client))
                y = {leaf: y[leaf] - rate * (steps[-1][leaf] - control[leaf] + mean[leaf]) for leaf in y}
            models.append(y)
            # Option I has the gradient at the received model, option II the mean of those on the way.
            measured = steps[:1] if option == 1 else steps
            fresh.append({leaf: sum(step[leaf] for step in measured) / len(measured) for leaf in y})
        x, mean = ({leaf: sum(one[leaf] for one in all_) / 3 for leaf in x} for all_ in (models, fresh))
        controls = fresh
    for leaf, value in x.items():
        assert torch.allclose(found[leaf], value, atol=1e-5)
        assert torch.allclose(found[f"control.{leaf}"], mean[leaf], atol=1e-5)


def test_a_file_is_executed_once_and_again_when_it_changed(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", METHOD.format("mine"))
    load_plugin(path)
    first = Method.find("mine")
    load_plugin(str(path))
    assert Method.find("mine") is first
    write(path, METHOD.format("mine").replace("1.0", "2.0"))
    load_plugin(path)
    assert Method.make("mine").strength == 2.0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import feddrm\n\n1 / 0\n", "failed in line 3 (ZeroDivisionError: division by zero): correct it"),
        ("x = (\n", "failed in line 1 (SyntaxError"),
        ("raise SystemExit(3)\n", "failed in line 1 (SystemExit: 3)"),
        ("x = 1\n", "defines no method, model or dataset: give it a frozen dataclass that sets 'name'"),
        ("from feddrm.methods import FedAvg\n", "defines no method"),
        (METHOD.format("fedavg"), "'fedavg' is already the name of FedAvg"),
        (METHOD.format("fedavg").replace("Mine", "FedAvg").replace("(FedAvg)", "(Base)").replace(
            "import FedAvg", "import FedAvg as Base"), "'fedavg' is already the name of FedAvg"),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path / "bad.py", text)
    with refused(str(path), says):
        load_plugin(path)
    assert Method.find("fedavg") is FedAvg
    assert not [name for name in sys.modules if name.startswith("feddrm_plugin_bad")]


def test_a_routing_rule_is_no_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rule, "family", dict(Rule.family))
    rule = "from feddrm.rules import Posterior\n\nclass Mine(Posterior):\n    name = 'mine'\n"
    with refused("defines no method, model or dataset: plugins cannot add a rule (see docs/extending.md)"):
        load_plugin(write(tmp_path / "rule.py", rule))


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with refused(f"cannot read the plugin {tmp_path / 'no.py'} (No such file or directory)"):
        load_plugin(tmp_path / "no.py")


def test_the_variable_names_files_for_the_first_name_that_is_not_built_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write(tmp_path / f"{name}.py", METHOD.format(name)) for name in ("one", "two")]
    monkeypatch.setenv("FEDDRM_PLUGINS", os.pathsep.join(map(str, paths)))
    Method.find("fedavg")
    assert "one" not in Method.family
    assert Method.make("two", strength=3).name == "two"
    assert {"one", "two", "fedavg"} <= set(Method.members())
    with pytest.raises(SettingError, match="unknown method 'tvo'; did you mean 'two'"):
        Method.find("tvo")


def test_an_installed_package_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "feddrm-mine", METHOD.format("packaged"))
    monkeypatch.syspath_prepend(tmp_path)
    member = Method.find("packaged")
    assert used_plugins(member) == [{"package": "feddrm-mine", "version": "1.2"}]
    require_plugins(used_plugins(member), "config.yaml")
    with refused("config.yaml needs the plugin package feddrm-other 3, which is not installed here"):
        require_plugins([{"package": "feddrm-other", "version": "3"}], "config.yaml")
    del sys.modules["feddrm_mine"]


def test_a_broken_package_is_named_and_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "aaa-broken", "import no_such_module_at_all")
    install(tmp_path, "feddrm-mine", METHOD.format("packaged"))
    monkeypatch.syspath_prepend(tmp_path)
    assert Method.find("packaged").name == "packaged"
    (line,) = load_configured()
    assert line == (
        "the installed plugin package aaa-broken 1.2 cannot be loaded (ModuleNotFoundError: No module named "
        "'no_such_module_at_all'): repair or uninstall it"
    )
    with pytest.raises(FeddrmError, match=r"unknown method 'absent', and the installed plugin package aaa-broken 1\.2"):
        Method.find("absent")
    del sys.modules["feddrm_mine"]


def test_only_the_plugins_that_are_used_are_recorded(tmp_path: Path) -> None:
    median, blobs = write_examples(tmp_path)
    for path in (median, blobs):
        load_plugin(path)
    record = [{"path": str(median), "sha256": hashlib.sha256(median.read_bytes()).hexdigest()}]
    assert used_plugins(Method.find("fedmedian"), Model.find("mlp"), None) == record
    assert used_plugins(FedAvg) == []

    class Below(Method.find("fedmedian")):  # type: ignore[misc]
        """A class of a notebook, below that of a plugin."""

    assert used_plugins(Below) == record
    assert without_folders(record) == [{**record[0], "path": "median.py"}]


def test_a_record_is_never_executed(tmp_path: Path) -> None:
    """Somebody else may have written the folder: the user names the file."""
    trap = write(tmp_path / "trap.py", f"import os; os.mkdir({str(tmp_path / 'sprung')!r})\n{METHOD.format('trap')}")
    record = [{"path": str(trap), "sha256": hashlib.sha256(trap.read_bytes()).hexdigest()}]
    with refused("config.yaml needs the plugin", str(trap), record[0]["sha256"], f"give --plugin {trap}"):
        require_plugins(record, "config.yaml")
    assert not (tmp_path / "sprung").exists()
    load_plugin(trap)
    require_plugins(record, "config.yaml")
    assert (tmp_path / "sprung").exists()


def test_a_moved_file_is_accepted_and_a_changed_one_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", METHOD.format("mine"))
    load_plugin(path)
    record = used_plugins(Method.find("mine"))
    forget()
    (tmp_path / "elsewhere").mkdir()
    moved = path.rename(tmp_path / "elsewhere" / "renamed.py")
    load_plugin(moved)
    require_plugins(record, "config.yaml")
    forget()
    load_plugin(write(path, METHOD.format("mine") + "# changed\n"))
    now = hashlib.sha256(path.read_bytes()).hexdigest()
    with refused(f"with the checksum {record[0]['sha256']}; {path} has {now}: give the file as it was then"):
        require_plugins(record, "config.yaml")


@pytest.mark.parametrize("record", ["mine.py", {"path": "mine.py"}, ["mine.py"], 3])
def test_a_record_of_another_form_is_one_line(record: object) -> None:
    with refused("config.yaml has no list of files under 'plugins'"):
        require_plugins(record, "config.yaml")


def test_nothing_recorded_needs_nothing() -> None:
    require_plugins(None, "config.yaml")
    require_plugins([], "config.yaml")
    with refused("needs the plugin None with the checksum None"):
        require_plugins([{}], "config.yaml")


CARELESS = """
    def phases(self, stage):
        from feddrm.methods import Phase
        from torch.nn.functional import cross_entropy
        return (Phase(stage.steps, lambda net, slots, b: cross_entropy(net(slots["model"], b.x).logits, b.y)),)
"""


def test_a_loss_without_the_mask_is_refused_before_the_first_round(tmp_path: Path) -> None:
    load_plugin(write(tmp_path / "mine.py", METHOD.format("careless") + CARELESS))
    x = torch.arange(40.0).reshape(20, 2)
    rows = feddrm.Federation.from_arrays({"oslo": (x, torch.arange(20) % 2), "lima": (x + 1, torch.arange(20) % 2)})
    with refused("careless: its loss or statistics depend on places of a batch without a sample"):
        feddrm.train(rows, "careless", rounds=1, out=tmp_path / "run")


def test_the_page_names_every_field_of_a_phase_and_every_loss() -> None:
    """Who writes a method by the page alone needs them."""
    page = (ROOT / "docs" / "extending.md").read_text()
    fields = [field.name for field in dataclasses.fields(Phase)]
    losses = [name for name, value in vars(feddrm.methods.losses).items() if inspect.isfunction(value)]
    assert [f for f in fields[2:] if f"\n| `{f}` |" not in page] == []
    assert [name for name in losses if f"`{name}" not in page and name != "cross_entropy"] == []
