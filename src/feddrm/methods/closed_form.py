"""The interface of methods without rounds: heads on frozen features, in closed form."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from feddrm.errors import SettingError
from feddrm.methods.method import Method, Phase, Stage
from feddrm.moments import Fold, Moments, MomentTarget, discriminant_head, ridge_head
from feddrm.registry import check_choice

ESTIMATORS = {"ridge": ridge_head, "lda": discriminant_head}


@dataclass(frozen=True)
class ClosedFormMethod(Method, ABC):
    """A method without rounds: its heads on frozen features follow from moments, which every client sends once.

    ``router`` is the estimator of the head over clients: ``lda``, or ``ridge``, which overlooks clients that lie
    between others (Hastie, Tibshirani and Friedman, section 4.2). ``ridge`` None is chosen on folds. ``polish`` rounds
    of the exact softmax fit may follow. With ``half``, clients send their Gram matrices in float16.
    """

    client_branch: ClassVar[bool] = True
    closed_form: ClassVar[bool] = True
    estimator: ClassVar[str]  # of the class head

    router: str = "lda"
    ridge: float | None = None
    polish: int = 0
    half: bool = False

    def check(self, rounds: int) -> None:
        if rounds:
            raise SettingError(f"{self.name} has no rounds, not {rounds}: fit it with 'feddrm fit' (feddrm.fit)")
        check_choice("router", self.router, list(ESTIMATORS))
        if self.ridge is not None and not 0 <= self.ridge < math.inf:
            raise SettingError(f"ridge={self.ridge}: give a number from zero up, or none to have it chosen")
        if self.polish < 0:
            raise SettingError(f"polish={self.polish}: give a number of rounds, or 0 for none")

    def phases(self, stage: Stage) -> tuple[Phase, ...]:
        return ()

    def head(self, moments: Moments, target: MomentTarget, ridge: float) -> Tensor:
        """The head [outputs, d + 1] over clients or over classes, on standardised features."""
        return ESTIMATORS[self.router if target == "client" else self.estimator](moments, target, ridge)

    @abstractmethod
    def corrections(
        self, folds: Sequence[Fold], heads: Sequence[Tensor], head: Tensor, pooled: Tensor, temperature: float
    ) -> Sequence[Sequence[Tensor]]:
        """Private changes of the class head that a client may make, from its own moments.

        Each is a change of ``head``, then those of ``heads``, which are the class heads without each fold. ``folds``
        are the client's moments, fitted and held out, ``pooled`` are the counts of all clients' classes. Heads are
        divided by ``temperature``. The change with the least log-loss on the client's held-out samples is kept. The
        features of a client with few samples are given in axes of their span: a change must lie in the span and not
        depend on the axes.
        """
