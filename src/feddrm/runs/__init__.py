"""Runs: from a federation and a method to a folder of figures; a run can be resumed at any moment."""

from feddrm.io.text import read_config
from feddrm.runs.config import Config, Evaluation, resolve
from feddrm.runs.environment import hardware, versions
from feddrm.runs.fit import fit
from feddrm.runs.folder import RunFolder
from feddrm.runs.run import Run
from feddrm.runs.train import train, train_seeds

__all__ = [
    "Config",
    "Evaluation",
    "Run",
    "RunFolder",
    "fit",
    "hardware",
    "read_config",
    "resolve",
    "train",
    "train_seeds",
    "versions",
]
