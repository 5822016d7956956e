"""Networks without buffers, their common ``Outputs``, and the models that build them.

``Model.make("resnet18").build((3, 32, 32), classes=10, clients=8)`` gives a ``Net``: one trunk, a
class branch and a client branch. Its parameters are its whole state.
"""

from feddrm.models.frozen import Identity
from feddrm.models.lenet import LeNet
from feddrm.models.mlp import Mlp
from feddrm.models.model import Model
from feddrm.models.net import (
    Dense,
    Net,
    Outputs,
    is_client_branch,
    is_head,
    is_output,
    is_project,
    is_trunk,
    of_this_thread,
    part,
)
from feddrm.models.onnx_file import Onnx
from feddrm.models.resnet import ResNet18, ResNet18Retina

__all__ = [
    "Dense",
    "Identity",
    "LeNet",
    "Mlp",
    "Model",
    "Net",
    "Onnx",
    "Outputs",
    "ResNet18",
    "ResNet18Retina",
    "is_client_branch",
    "is_head",
    "is_output",
    "is_project",
    "is_trunk",
    "of_this_thread",
    "part",
]
