"""Tensors in files: safetensors by name, slots of leaves under the names ``slot/leaf``, and broken .npz files."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import safetensors.numpy
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from feddrm.io.text import broken, read_bytes

# The errors that NumPy raises for an .npz file that is cut off, damaged, or of another kind.
BROKEN_NPZ = (OSError, KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)

# Not bfloat16 and shorter floats.
NUMPY_TYPES = (torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file.

    Written from NumPy's arrays, which takes a third of the time for many small tensors and allows shared memory.
    """
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    notes = None if metadata is None else dict(metadata)
    if any(value.dtype not in NUMPY_TYPES for value in plain.values()):
        return safetensors.torch.save({name: value.clone() for name, value in plain.items()}, notes)
    return safetensors.numpy.save({name: value.numpy() for name, value in plain.items()}, notes)


def read_tensors(path: Path, remedy: str) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    content = read_bytes(path, remedy)
    try:
        return safetensors.torch.load(content)
    except SafetensorError as error:
        raise broken(path, f"not safetensors, {error}", remedy) from error


def read_metadata(path: Path, remedy: str) -> dict[str, str]:
    """What a safetensors file says besides its tensors."""
    try:
        with safe_open(str(path), framework="pt") as file:
            return dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise broken(path, f"not safetensors, {error}", remedy) from error


def join_slots(slots: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Slots of leaves as one dictionary with names ``slot/leaf``. An empty slot has no entry."""
    return {f"{slot}/{leaf}": value for slot, leaves in slots.items() for leaf, value in leaves.items()}


def split_slots(tensors: Mapping[str, Tensor], slots: Iterable[str] = ()) -> dict[str, dict[str, Tensor]]:
    """The inverse of :func:`join_slots`. The result has all of ``slots``, empty ones too."""
    out: dict[str, dict[str, Tensor]] = {slot: {} for slot in slots}
    for name, value in tensors.items():
        slot, _, leaf = name.partition("/")
        out.setdefault(slot, {})[leaf] = value
    return out
