"""Named tensors as safetensors, and slots of them under names like ``slot/leaf``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from feddrm.errors import FeddrmError
from feddrm.io.text import broken


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file, in the order given. Tensors are copied: several may share memory, the file's may not."""
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return save(plain, metadata=None if metadata is None else dict(metadata))


def read_tensors(path: Path, remedy: str) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    try:
        return load(path.read_bytes())
    except OSError as error:
        raise FeddrmError(f"cannot read {path} ({error.strerror}): {remedy}") from error
    except SafetensorError as error:
        raise broken(path, f"not safetensors, {error}", remedy) from error


def join_slots(slots: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Slots of leaves as one dictionary with names ``slot/leaf``; an empty slot leaves no trace in it."""
    return {f"{slot}/{leaf}": value for slot, leaves in slots.items() for leaf, value in leaves.items()}


def split_slots(tensors: Mapping[str, Tensor], slots: Iterable[str] = ()) -> dict[str, dict[str, Tensor]]:
    """The inverse of :func:`join_slots`. ``slots`` names those that may be empty."""
    out: dict[str, dict[str, Tensor]] = {slot: {} for slot in slots}
    for name, value in tensors.items():
        slot, _, leaf = name.partition("/")
        out.setdefault(slot, {})[leaf] = value
    return out
