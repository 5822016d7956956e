"""Runs: from a federation and a method to a folder of numbers, resumable at any moment."""

from feddrm.runs.config import Config, Evaluation, read_config, resolve
from feddrm.runs.folder import RunFolder
from feddrm.runs.run import Run, train

__all__ = ["Config", "Evaluation", "Run", "RunFolder", "read_config", "resolve", "train"]
