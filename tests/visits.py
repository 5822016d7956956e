"""Made patients with several visits each, which resemble each other."""

from __future__ import annotations

import torch
from torch import Tensor


def visits_of(patients: int, seed: int) -> tuple[Tensor, Tensor]:
    """Whose each visit is, and a probability for it. Patients of few visits are the odd ones."""
    g = torch.Generator().manual_seed(seed)
    visits = torch.tensor([1, 10, 30])[torch.randint(3, (patients,), generator=g)]
    whose = torch.arange(patients).repeat_interleave(visits)
    shift = 2 * torch.randn(patients, generator=g, dtype=torch.float64) / visits.sqrt()
    return whose, (shift[whose] + 0.1 * torch.randn(len(whose), generator=g, dtype=torch.float64)).sigmoid()
