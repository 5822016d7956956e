"""Tensors in files: safetensors by name, slots of leaves under the names ``slot/leaf``, and broken .npz files."""

from __future__ import annotations

import zipfile
import zlib
from collections import Counter
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

GROUP_BYTES = 2**26  # that are joined on a card before they are copied: the room that this takes there

# Not bfloat16 and shorter floats.
NUMPY_TYPES = (torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file.

    Written from NumPy's arrays, which takes a third of the time for many small tensors and allows shared memory.
    """
    plain = on_host(tensors)
    notes = None if metadata is None else dict(metadata)
    if any(value.dtype not in NUMPY_TYPES for value in plain.values()):
        return safetensors.torch.save({name: value.clone() for name, value in plain.items()}, notes)
    return safetensors.numpy.save({name: value.numpy() for name, value in plain.items()}, notes)


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in main memory, contiguous. Those of a GPU are joined there: every copy waits for a busy card."""
    values = {name: value.detach() for name, value in tensors.items()}
    on_card = {name: value for name, value in values.items() if value.device.type != "cpu"}
    return {name: value.contiguous() for name, value in (values | copied_in_groups(on_card)).items()}


def copied_in_groups(tensors: Mapping[str, Tensor], most: int = GROUP_BYTES) -> dict[str, Tensor]:
    """Copies in main memory of tensors of one device, one copy for about ``most`` bytes of one type."""
    groups: dict[tuple[torch.dtype, int], list[str]] = {}
    sizes: Counter[torch.dtype] = Counter()
    for name, value in tensors.items():
        groups.setdefault((value.dtype, sizes[value.dtype] // most), []).append(name)
        sizes[value.dtype] += value.nbytes
    copies: dict[str, Tensor] = {}
    for names in groups.values():
        joined = torch.cat([tensors[name].reshape(-1) for name in names]).cpu()
        parts = torch.split(joined, [tensors[name].numel() for name in names])
        copies |= {name: part.view(tensors[name].shape) for name, part in zip(names, parts, strict=True)}
    return copies


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
