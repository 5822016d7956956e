"""The grid of experiments: settings, methods, seeds, and the tables that show them, read from YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddrm.errors import FeddrmError, SettingError
from feddrm.io.text import read_yaml
from feddrm.registry import nearest

if TYPE_CHECKING:
    from feddrm.data import Dataset
    from feddrm.engine import Plan
    from feddrm.methods import Method
    from feddrm.models import Model
    from feddrm.runs import Evaluation

HERE = Path(__file__).parent
GRIDS = {"paper": HERE / "grid.yaml", "tuned": HERE / "tuned.yaml", "smoke": HERE / "smoke.yaml"}
REMEDY = "give an existing YAML file of 'key: value' lines"
KEYS = ("name", "seed", "train", "evaluation", "methods", "settings", "order", "tables")
PARTS = ("data", "method", "model", "evaluation")
PARTICIPATION = {"participation": 1.0, "dropout": 0.0}  # in the paper, all clients take part in every round


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of the grid, identified by its setting, its method with hyper-parameters, and its seed."""

    grid: Grid
    setting: str
    method: str
    seed: int
    step: str

    @property
    def id(self) -> str:
        """The name of its result and of its run folder; independent of the tables that show it."""
        return f"{self.setting}_{self.method}_seed{self.seed}"

    @cached_property
    def _setting(self) -> Mapping[str, Any]:
        settings: Mapping[str, Mapping[str, Any]] = self.grid.content["settings"]
        return settings[self.setting]

    @property
    def _method(self) -> Mapping[str, Any]:
        methods: Mapping[str, Mapping[str, Any]] = self.grid.content["methods"]
        return methods[self.method]

    @cached_property
    def _train(self) -> dict[str, Any]:
        own = {**self._setting.get("train", {}), **self.grid.chosen.get(self.pair, {}), "seed": self.seed}
        return {**self.grid.content["train"], **own}

    @property
    def rounds(self) -> int:
        """The rounds of its training."""
        return int(self._train["rounds"])

    @cached_property
    def dataset(self) -> Dataset:
        from feddrm.data import Dataset

        use = dict(self._setting["data"])
        return Dataset.make(use.pop("name"), seed=self.seed, **use)

    @cached_property
    def learner(self) -> Method:
        from feddrm.methods import Method

        use = dict(self._method["use"])
        return Method.make(use.pop("name"), **use)

    @cached_property
    def model(self) -> Model:
        from feddrm.models import Model

        use = dict(self._setting["model"])
        name = use.pop("name")
        return Model.make(name, **{key: tuple(v) if isinstance(v, list) else v for key, v in use.items()})

    @property
    def pair(self) -> str:
        """Setting and method. Where a grid searches for settings, all seeds of a pair share what was found."""
        return f"{self.setting}_{self.method}"

    @cached_property
    def plan(self) -> Plan:
        from feddrm.engine import Plan

        return Plan(**self._train)

    @cached_property
    def before(self) -> tuple[int, int] | None:
        """First and last round of the window before tuning starts, where all clients still hold the global model."""
        last = self.rounds - self._tuning_rounds
        return None if last == self.rounds else (max(1, last - self.window + 1), last)

    @property
    def _tuning_rounds(self) -> int:
        if not self.grid.whole:
            return self.learner.tuning_rounds(self.rounds)
        return int(self._method.get("tuning_rounds") or self._method["use"].get("tuning") or 0)

    @cached_property
    def window(self) -> int:
        return int(self._evaluation["window"])

    @property
    def _evaluation(self) -> dict[str, Any]:
        return {**self.grid.content["evaluation"], **self._setting.get("evaluation", {})}

    @cached_property
    def evaluation(self) -> Evaluation:
        from feddrm.runs import Evaluation

        return Evaluation(**self._evaluation, also=self.before)

    def protocol(self) -> dict[str, Any]:
        """The settings that define the cell, in the form of ``config.yaml``; without the device and the engine."""
        if not self.grid.whole:
            return self.resolved_protocol()
        return {
            "data": {**self._setting["data"], "seed": self.seed},
            "method": dict(self._method["use"]),
            "model": dict(self._setting["model"]),
            "evaluation": {**self._evaluation, "also": None if self.before is None else list(self.before)},
            **PARTICIPATION,
            **self._train,
        }

    def resolved_protocol(self) -> dict[str, Any]:
        """The protocol with the defaults of all settings that the grid leaves out; loads torch."""
        from feddrm.runs import Config

        data = {"name": self.dataset.name, **self.dataset.settings()}
        config = Config(data, self.learner, self.model, self.plan, self.evaluation).as_dict()
        return {key: config[key] for key in (*PARTS, *self.grid.content["train"], "seed", *PARTICIPATION)}


@dataclass(frozen=True, eq=False)
class Grid:
    """All cells and the tables that show them.

    A grid with a ``search`` finds settings of its own for every setting and method; ``chosen`` has those found so far.
    """

    content: Mapping[str, Any]
    chosen: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, source: str | Path) -> Grid:
        """Read a bundled grid by name ('paper', 'tuned', 'smoke'), or a YAML file of the same form."""
        if str(source) in GRIDS:
            return cls(read_yaml(GRIDS[str(source)], "install feddrm again"))
        path = Path(source)
        if not path.is_file():
            raise SettingError(f"unknown grid '{source}': choose one of {', '.join(GRIDS)}, or give a YAML file")
        grid = cls(read_yaml(path, REMEDY))
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

    @property
    def whole(self) -> bool:
        """Whether the grid leaves no setting to a default, so that listing its results does not need the classes.

        This is so for the bundled grids; tests compare them with the classes.
        """
        return self.name in GRIDS

    @property
    def search(self) -> Mapping[str, Any] | None:
        """How the settings of each method are searched for: ``axes``, ``goal``, ``cost`` and ``held_out``."""
        return self.content.get("search")

    def needs_search(self, cell: Cell) -> bool:
        """Whether the cell's settings have yet to be searched for."""
        return self.search is not None and cell.pair not in self.chosen

    def label(self, kind: str, name: str) -> str:
        """The name of a method or a setting in tables."""
        return str(self.content[kind][name]["label"])

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, the most valuable first, each once."""
        cells: dict[str, Cell] = {}
        for step in self.content["order"]:
            for seed in step.get("seeds", [self.seed]):
                for method in step["methods"]:
                    for setting in step["settings"]:
                        cell = Cell(self, setting, method, seed, step["name"])
                        cells.setdefault(cell.id, cell)
        return tuple(cells.values())

    @cached_property
    def by_id(self) -> Mapping[str, Cell]:
        return {cell.id: cell for cell in self.cells}

    def steps(self) -> tuple[str, ...]:
        return tuple(step["name"] for step in self.content["order"])

    def choose(self, patterns: Sequence[str] = (), seeds: Sequence[int] = ()) -> list[Cell]:
        """The cells that match any pattern, the most valuable first; ``seeds`` replace the grid's own.

        A pattern is the name of a step or a table, a cell's name with wildcards, or part of a cell's name.
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
            matching = [cell for cell in cells if self._matches(pattern, cell, any_seed=bool(seeds))]
            if not matching:
                names = [*self.steps(), *self.content["tables"], *self.content["settings"], *self.content["methods"]]
                raise SettingError(
                    f"--only '{pattern}' picks no cell{nearest(pattern, names)} (see: feddrm paper list)"
                )
            picked |= {cell.id: cell for cell in matching}
        return [cell for cell in cells if cell.id in picked]

    def _matches(self, pattern: str, cell: Cell, any_seed: bool) -> bool:
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
