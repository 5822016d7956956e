"""The largest of values that sites hold, one each of many samples: how a site answers, and how the server reads it.

A largest value shows one sample. With a floor ``per_sum`` a site answers with the mean of its so many largest values,
one of each subject.
A largest value is no sum either. Where answers are masked, it is given by counts in bins, whose sum over sites has a
highest bin.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS, BINS = 64, 4096  # bins of a sixty-fourth of a power of two, from 2^-32 to 2^32


def largest_value(values: Tensor, subject: Tensor, per_sum: int, pooled: bool) -> Tensor:
    """A site's answer: a number, or with ``pooled`` counts in bins. Without values it is zero.

    ``subject`` [n] numbers whom each value is of.
    """
    numbers, place = torch.unique(subject, return_inverse=True)
    largest = values.new_zeros(len(numbers)).scatter_reduce(0, place, values, "amax", include_self=False)
    most = largest.topk(min(per_sum, len(largest))).values  # the largest alone, if there is no floor
    value = most.mean() if len(most) else most.sum()
    if not pooled:
        return value
    place = (value.clamp_min(1e-30).log2() * STEPS).ceil().long().cpu() + BINS // 2
    return torch.bincount(place.clamp(0, BINS - 1).expand(len(most)), minlength=BINS)


def read_largest(answer: Tensor) -> float:
    """The number that a site answered; of counts, the upper edge of the highest bin that has a sample."""
    return float(answer) if answer.dim() == 0 else 2.0 ** ((int(answer.nonzero().max()) - len(answer) // 2) / STEPS)
