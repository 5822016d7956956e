"""The search for good settings: successive halving on samples that are held out of the training data."""

from feddrm.search.candidates import Candidate
from feddrm.search.tune import TuneResult, tune

__all__ = ["Candidate", "TuneResult", "tune"]
