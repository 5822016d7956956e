"""Tasks: what labels mean, what a head's outputs are, and the loss between them."""

from feddrm.tasks.classification import CLASSIFICATION, Classification
from feddrm.tasks.survival import Survival
from feddrm.tasks.task import Task, require_classes

__all__ = ["CLASSIFICATION", "Classification", "Survival", "Task", "require_classes"]
