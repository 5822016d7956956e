"""The basis functions of a density ratio model as a feature: a router's questions compare clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from feddrm.errors import FeddrmError
from feddrm.models import Net
from feddrm.router.features.base import Feature, Parts, Stages


@dataclass(frozen=True)
class BasisFeature(Feature):
    """Basis functions of some columns of a table, in float64; they compare clients and route no query

    ``columns`` are the numbers of network inputs. Times ``scale``, plus ``centre``, they are the raw values.
    """

    name: ClassVar[str] = "basis"
    needs: ClassVar[str] = "nothing"

    basis: str = "identity"
    columns: tuple[int, ...] = ()
    centre: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for key in ("columns", "centre", "scale"):  # JSON turns tuples into lists
            object.__setattr__(self, key, tuple(getattr(self, key)))

    def unfit(self, shape: tuple[int, ...], net: Net | None) -> str | None:  # noqa: ARG002
        if not self.columns:
            return "it names no columns"
        return None if len(shape) == 1 else "samples are no rows of a table"

    def holds_sample(self, shape: tuple[int, ...]) -> bool:  # noqa: ARG002
        return True

    def parts(self, net: Net | None, stages: Stages) -> Parts:  # noqa: ARG002
        from feddrm.drm.basis import evaluate_basis

        x = stages["input"][:, list(self.columns)].double()
        raw = x * x.new_tensor(self.scale) + x.new_tensor(self.centre)
        try:
            return {self.name: torch.from_numpy(evaluate_basis(self.basis, raw.cpu().numpy())).to(x.device)}
        except FeddrmError:  # its text has an observation, which must not leave its site
            raise FeddrmError(
                f"the {self.basis} basis has no finite value for some samples: choose another, such as normal"
            ) from None
