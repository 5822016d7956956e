"""A frozen network in an ONNX file, run by onnxruntime (extra ``export``). Its bytes are a leaf of the network."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from feddrm.errors import FeddrmError, SettingError
from feddrm.io.text import read_bytes
from feddrm.models.frozen import FrozenModel

_SESSIONS: Any = WeakTensorKeyDictionary()  # by the leaf: every query would open the file again


@dataclass(frozen=True)
class Onnx(FrozenModel):
    """A frozen network of your own in an ONNX file, on CPU (feddrm fit --set model.path=extractor.onnx)

    It takes a batch of samples as the clients' views give them: pixels are scaled to [-1, 1]. ``output`` names the
    output that is used (default: the first). Its ``width`` and the file's ``sha256`` are filled in. The file's bytes
    travel with the shared leaves, so ``path`` is needed for the fit alone.
    """

    name: ClassVar[str] = "onnx"

    path: str = ""
    output: str = ""
    width: int | None = None
    sha256: str = ""

    def resolved(self, shape: tuple[int, ...]) -> Self:
        """With an absolute path, the file's checksum, and the width of the output, measured on a blank sample."""
        if self.width is not None:
            return self
        if not self.path:
            raise SettingError("'onnx' needs to know where the network is: give path (--set model.path=extractor.onnx)")
        path = Path(self.path).resolve()
        content = read_bytes(path, "give the path of an .onnx file")
        session = _open(content, str(path))
        _check_input(session, shape, str(path))
        rows = _compute(session, self.output, np.zeros((2, *shape), np.float32), str(path))
        return replace(self, path=str(path), width=rows.shape[1], sha256=hashlib.sha256(content).hexdigest())

    def extractor(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        known = self.resolved(shape)
        assert known.width is not None
        # Of a run that was copied to another machine the leaf comes with the run, and the path leads nowhere.
        path = Path(known.path)
        content = read_bytes(path, "give the path of an .onnx file") if path.is_file() else b""
        return OnnxExtractor(content, known.output), known.width


class OnnxExtractor(nn.Module):
    """The network of an ONNX file. The leaf ``content`` has its bytes; no gradient passes."""

    def __init__(self, content: bytes, output: str) -> None:
        super().__init__()
        raw = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.zeros(0, dtype=torch.uint8)
        self.content = nn.Parameter(raw, requires_grad=False)
        self.output = output

    def forward(self, x: Tensor) -> Tensor:
        if (session := _SESSIONS.get(self.content)) is None:
            session = _open(self.content.detach().cpu().numpy().tobytes(), "the run's extractor")
            _SESSIONS[self.content] = session
        rows = _compute(session, self.output, x.detach().cpu().float().numpy(), "the run's extractor")
        return torch.from_numpy(rows).to(x.device)


def _open(content: bytes, where: str) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise FeddrmError("a network in an ONNX file needs onnxruntime: pip install 'feddrm[export]'") from error
    try:
        return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common class
        reason = " ".join(str(error).split())[:200]
        raise FeddrmError(f"{where} is no network that onnxruntime can run ({reason}): export it again") from error


def _check_input(session: Any, shape: tuple[int, ...], where: str) -> None:
    """Refuse a file whose input is not a batch of such samples in float32."""
    wanted = f"one input of float32 [batch, {', '.join(map(str, shape))}] with a free batch axis"
    inputs = session.get_inputs()
    if len(inputs) != 1:
        names = ", ".join(i.name for i in inputs)
        raise FeddrmError(f"{where} has {len(inputs)} inputs ({names}): export it with {wanted}")
    given = inputs[0]
    sizes = zip(given.shape[1:], shape, strict=False)
    fits = len(given.shape) == len(shape) + 1 and all(not isinstance(a, int) or a == b for a, b in sizes)
    if given.type != "tensor(float)" or not fits or isinstance(given.shape[0], int):
        raise FeddrmError(
            f"{where} has the input '{given.name}' of {given.type} {given.shape}: export it with {wanted}, or "
            "bring the samples to its size (--set data.size=...)"
        )


def _compute(session: Any, output: str, x: NDArray[np.float32], where: str) -> NDArray[np.float32]:
    """Rows [n, width] of one output. Axes of length one are dropped, as those after a pooling."""
    names = [o.name for o in session.get_outputs()]
    if output and output not in names:
        raise FeddrmError(f"{where} has no output '{output}': give one of {', '.join(names)} (--set model.output=...)")
    try:
        (rows,) = session.run([output or names[0]], {session.get_inputs()[0].name: x})
    except Exception as error:  # onnxruntime's errors have no common class
        raise FeddrmError(f"{where} fails on samples {x.shape} ({' '.join(str(error).split())[:200]})") from error
    if rows.ndim < 2 or len(rows) != len(x) or rows.size != len(x) * max(rows.shape[1:]):
        raise FeddrmError(
            f"{where}: output '{output or names[0]}' has shape {rows.shape} for {len(x)} samples, not one vector each: "
            f"pool it, or choose another output of {', '.join(names)} (--set model.output=...)"
        )
    flat: NDArray[np.float32] = rows.reshape(len(x), -1).astype(np.float32, copy=False)
    return flat
