"""The grid: settings, methods, seeds, and the tables that show them, read from YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from feddrm.data import Dataset
from feddrm.engine import Plan
from feddrm.errors import FeddrmError, SettingError
from feddrm.methods import Method
from feddrm.models import Model
from feddrm.registry import nearest
from feddrm.runs import Config, Evaluation, read_config

GRIDS = {"paper": "grid.yaml", "smoke": "smoke.yaml"}
KEYS = ("name", "seed", "train", "evaluation", "methods", "settings", "order", "tables")
PARTS = ("data", "method", "model", "evaluation")
EVERYBODY = ("participation", "dropout")  # the paper asks all clients in every round


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of the grid: known by its setting, its method with hyper-parameters, and its seed."""

    grid: Grid
    setting: str
    method: str
    seed: int
    step: str

    @property
    def id(self) -> str:
        """The name of its result and of its run folder; no table appears in it."""
        return f"{self.setting}_{self.method}_seed{self.seed}"

    @cached_property
    def _setting(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.grid.content["settings"][self.setting]
        return found

    @cached_property
    def dataset(self) -> Dataset:
        use = dict(self._setting["data"])
        return Dataset.make(use.pop("name"), seed=self.seed, **use)

    @cached_property
    def learner(self) -> Method:
        use = dict(self.grid.content["methods"][self.method]["use"])
        return Method.make(use.pop("name"), **use)

    @cached_property
    def model(self) -> Model:
        use = dict(self._setting["model"])
        name = use.pop("name")
        return Model.make(name, **{key: tuple(v) if isinstance(v, list) else v for key, v in use.items()})

    @cached_property
    def plan(self) -> Plan:
        return Plan(**{**self.grid.content["train"], **self._setting.get("train", {}), "seed": self.seed})

    @cached_property
    def before(self) -> tuple[int, int] | None:
        """The window before tuning starts: there every client still holds the same, global, model."""
        tuned = self.plan.rounds - self.learner.tuning_rounds(self.plan.rounds)
        return None if tuned == self.plan.rounds else (max(1, tuned - self.window + 1), tuned)

    @cached_property
    def window(self) -> int:
        return int(self._evaluation["window"])

    @property
    def _evaluation(self) -> dict[str, Any]:
        return {**self.grid.content["evaluation"], **self._setting.get("evaluation", {})}

    @cached_property
    def evaluation(self) -> Evaluation:
        return Evaluation(**self._evaluation, also=self.before)

    def protocol(self) -> dict[str, Any]:
        """What makes the cell what it is, in the form of ``config.yaml``; where and how fast it runs is not part."""
        data = {"name": self.dataset.name, **self.dataset.settings()}
        config = Config(data, self.learner, self.model, self.plan, self.evaluation).as_dict()
        return {key: config[key] for key in (*PARTS, *self.grid.content["train"], "seed", *EVERYBODY)}

    def check(self) -> None:
        """Refuse a cell that could never run."""
        self.dataset.check()
        self.plan.check()
        self.evaluation.check()
        self.learner.check(self.plan.rounds)


@dataclass(frozen=True, eq=False)
class Grid:
    """Everything that is to be run and shown."""

    content: Mapping[str, Any]

    @classmethod
    def read(cls, source: str | Path) -> Grid:
        """A bundled grid by name ('paper', 'smoke'), or any YAML file of the same form."""
        if str(source) in GRIDS:
            return cls(yaml.safe_load((files("feddrm.paper") / GRIDS[str(source)]).read_text(encoding="utf-8")))
        path = Path(source)
        if not path.is_file():
            raise SettingError(f"unknown grid '{source}': choose {' or '.join(GRIDS)}, or give a YAML file")
        grid = cls(read_config(path))
        if missing := [key for key in KEYS if key not in grid.content]:
            raise FeddrmError(f"{path} is no grid: it lacks {', '.join(missing)} (compare feddrm/paper/smoke.yaml)")
        if str(grid.content.get("name")) in GRIDS:
            raise FeddrmError(f"{path} calls itself '{grid.name}', the name of a bundled grid: give it another name")
        return grid

    @property
    def name(self) -> str:
        return str(self.content["name"])

    @property
    def seed(self) -> int:
        return int(self.content["seed"])

    def label(self, kind: str, name: str) -> str:
        """How tables call a method or a setting."""
        return str(self.content[kind][name]["label"])

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, the most valuable first, each once."""
        found: dict[str, Cell] = {}
        for step in self.content["order"]:
            for seed in step.get("seeds", [self.seed]):
                for method in step["methods"]:
                    for setting in step["settings"]:
                        cell = Cell(self, setting, method, seed, step["name"])
                        found.setdefault(cell.id, cell)
        return tuple(found.values())

    @cached_property
    def by_id(self) -> Mapping[str, Cell]:
        return {cell.id: cell for cell in self.cells}

    def cell(self, setting: str, method: str, seed: int | None = None) -> Cell | None:
        return self.by_id.get(f"{setting}_{method}_seed{self.seed if seed is None else seed}")

    def steps(self) -> tuple[str, ...]:
        return tuple(step["name"] for step in self.content["order"])

    def choose(self, patterns: Sequence[str] = (), seeds: Sequence[int] = ()) -> list[Cell]:
        """The cells that any pattern picks, in order of value; other seeds than the grid's may be asked for.

        A pattern is the name of a step or a table, a name with wildcards, or part of a name.
        """
        cells = list(self.cells)
        if seeds:
            pairs: dict[tuple[str, str], str] = {}
            for cell in cells:
                pairs.setdefault((cell.setting, cell.method), cell.step)
            every = [Cell(self, *pair, seed, step) for seed in seeds for pair, step in pairs.items()]
            cells = [self.by_id.get(cell.id, cell) for cell in every]
        if not patterns:
            return cells
        picked: dict[str, Cell] = {}
        for pattern in patterns:
            found = [cell for cell in cells if self._picks(pattern, cell, any_seed=bool(seeds))]
            if not found:
                names = [*self.steps(), *self.content["tables"], *self.content["settings"], *self.content["methods"]]
                raise SettingError(
                    f"--only '{pattern}' picks no cell{nearest(pattern, names)} (see: feddrm paper list)"
                )
            picked |= {cell.id: cell for cell in found}
        return [cell for cell in cells if cell.id in picked]

    def _picks(self, pattern: str, cell: Cell, any_seed: bool) -> bool:
        if pattern in self.steps() or pattern in self.content["tables"]:
            shown = any_seed or cell.seed == self.seed  # tables show the grid's own seed
            return pattern == cell.step or (shown and pattern in self.used_by(cell))
        if any(letter in pattern for letter in "*?["):
            return fnmatchcase(cell.id, pattern)
        return pattern in cell.id

    def used_by(self, cell: Cell) -> tuple[str, ...]:
        """The steps and tables that need a cell's setting and method."""
        return self._users.get((cell.setting, cell.method), ())

    @cached_property
    def _users(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        users: dict[tuple[str, str], dict[str, None]] = {}
        for step in self.content["order"]:
            if "seeds" not in step:
                for pair in ((s, m) for s in step["settings"] for m in step["methods"]):
                    users.setdefault(pair, {})[step["name"]] = None
        for name, parts in self.content["tables"].items():
            for part in parts:
                for pair in _pairs(part):
                    users.setdefault(pair, {})[name] = None
        return {pair: tuple(names) for pair, names in users.items()}


def _pairs(part: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for row in part["rows"]:
        for column in part["columns"]:
            yield row.get("setting") or column["setting"], row["method"]
