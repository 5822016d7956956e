"""A run that was trained before: opened, described, given a router, and asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feddrm.data import Federation
from feddrm.errors import FeddrmError
from feddrm.predictor.answers import ABSTAIN, Answers, answer_queries, answers_of
from feddrm.registry import check_choice
from feddrm.router import Router, load_router
from feddrm.runs.folder import RunFolder
from feddrm.runs.run_evaluation import checkpoint_predictor, evaluate_run
from feddrm.runs.run_router import fit_run_router
from feddrm.typed_settings import typed_arguments


@dataclass(frozen=True)
class Run:
    """A finished or interrupted run: its folder, its configuration and, once finished, its summary.

    A run that :func:`feddrm.train` returned remembers its ``federation``; one that was opened from disk does not.

    Example:
        >>> federation = feddrm.load("digits", clients=3)
        >>> run = feddrm.train(federation, rounds=2, out="runs/first")
        >>> router = run.fit_router(features="raw", heads=False)  # the default tries all features
        >>> answers = feddrm.Run.open("runs/first").predict(federation.clients[0].test.x[:5])
        >>> answers
        Answers(5 labels for 5 queries, 10 classes)
    """

    path: Path
    config: Mapping[str, Any] = field(hash=False)
    federation: Federation | None = field(default=None, compare=False)

    @classmethod
    @typed_arguments
    def open(cls, path: str | Path) -> Run:
        """Open the folder of a run that was trained before."""
        folder = RunFolder(path)
        return cls(folder.path, folder.config())

    @property
    def folder(self) -> RunFolder:
        """The run's files."""
        return RunFolder(self.path)

    @property
    def summary(self) -> dict[str, Any] | None:
        """The content of ``summary.json`` now, with the figures of a fitted router; None until the run is finished."""
        return self.folder.summary()

    def metrics(self) -> list[dict[str, Any]]:
        """One entry per evaluated round."""
        return self.folder.metrics()

    @typed_arguments
    def fit_router(self, federation: Federation | None = None, **settings: Any) -> Router:
        """Fit the exact router into the run's folder.

        The data are ``federation``, or what this run was trained on in this process, or loaded again by the settings.
        Settings are those of :class:`feddrm.router.RouterSettings` (features, heads, views and so on), ``device``,
        ``data_dir``, and ``progress`` for steps on standard error.
        """
        return fit_run_router(self.folder, self.config, federation or self.federation, **settings)

    @typed_arguments
    def evaluate(self, federation: Federation | None = None, **options: Any) -> dict[str, Any]:
        """Measure the run again, after its last round, with ``views=8`` for example; nothing is written.

        Options as for :func:`feddrm.runs.run_evaluation.evaluate_run`, data as for :meth:`fit_router`.
        """
        return evaluate_run(self.folder, self.config, federation or self.federation, **options)

    def router(self, device: str = "cpu") -> Router:
        """The router that was fitted before."""
        return load_router(self.folder.router, device)

    def predict(self, x: Any, **options: Any) -> Answers:
        """The answers of the run's clients to samples [N, ...], each routed to the client that should answer it.

        Options: ``client`` asks one client by name, without routing. ``consult=2`` asks the two best clients and mixes
        their answers. ``abstain="answer"`` gives labels where the router abstains, too. ``answer`` is ``trained`` or
        ``refit``. ``views=8`` averages over so many crops and mirror images of a sample. ``label_miss=0.1`` adds sets
        of labels that miss the right one so often. All others (rule, coverage, available) are those of
        :meth:`feddrm.router.Router.route`.

        One client can be asked before a router is fitted. Its model is that of the checkpoint, its probabilities are
        not calibrated, and the run's data are loaded again unless this process has them.
        """
        if options.get("client") is not None and not self.folder.has_router:
            return self._ask_without_router(x, **options)
        return answer_queries(self.folder, x, **options)

    def _ask_without_router(
        self, x: Any, client: str, views: int = 1, abstain: str = "mark", **options: Any
    ) -> Answers:
        check_choice("abstain", abstain, ABSTAIN)
        defaults = {"consult": 1, "answer": "trained"}
        if needing := [name for name, value in options.items() if value not in (None, defaults.get(name))]:
            what = f"which {' and '.join(needing)} need{'s' * (len(needing) == 1)}"
            raise FeddrmError(f"{self.path} has no router, {what}: fit it ('feddrm fit-router')")
        return answers_of(checkpoint_predictor(self.folder, self.config, self.federation, client, views), x)

    def __repr__(self) -> str:
        names = {part: self.config.get(part, {}).get("name") for part in ("data", "method", "model")}
        settings = ", ".join(f"{part}={name!r}" for part, name in names.items())
        return f"Run({str(self.path)!r}, {settings}, {self._progress()})"

    def _progress(self) -> str:
        if (summary := self.summary) is None:
            lines = self.metrics()
            return f"unfinished: round {lines[-1]['round'] if lines else 0} of {self.config.get('rounds')}"
        done = f"{self.config.get('rounds')} rounds, {'router' if summary.get('router') else 'no router'}"
        for key, what in (("average_accuracy", "accuracy"), ("average_c_index", "C-index")):
            if (score := summary.get(key)) is not None:
                return f"{done}, average {what} {score['mean']:.1%}"
        return done
