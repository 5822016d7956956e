"""Runs: from a federation and a method to a folder of numbers, resumable at any moment."""

from feddrm.runs.config import Config, Evaluation, read_config, resolve
from feddrm.runs.folder import RunFolder
from feddrm.runs.run import Run, hardware, train, versions

__all__ = ["Config", "Evaluation", "Run", "RunFolder", "hardware", "read_config", "resolve", "train", "versions"]
