"""The bytes of a message, as far as they are read without torch: its header, and its tensors as a file of their own."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from feddrm.errors import FeddrmError

FORMAT = "feddrm-letter-1"  # part of the wire format: the name stays


class MessageHeader(NamedTuple):
    """The plain values of a message, and the order of its tensors."""

    header: dict[str, Any]
    order: list[str]


def read_header(content: bytes) -> MessageHeader:
    """The header of a message. Bytes of any other form are refused."""
    try:
        metadata = json.loads(_safetensors_header(content)[0]["__metadata__"][FORMAT])
        return MessageHeader(dict(metadata["header"]), list(metadata["order"]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise not_a_message(error) from error


def tensors_alone(content: bytes) -> bytes:
    """The safetensors file of the message's tensors, without the header: what ``tensor_bytes`` made of them."""
    fields, end = _safetensors_header(content)
    fields.pop("__metadata__", None)
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # as safetensors aligns the data
    return len(text).to_bytes(8, "little") + text + content[end:]


def not_a_message(error: Exception) -> FeddrmError:
    """The error for bytes of another form."""
    return FeddrmError(f"not a message of format {FORMAT} ({error}): both ends need the same feddrm")


def _safetensors_header(content: bytes) -> tuple[dict[str, Any], int]:
    """The fields, and where the data begins, which are not copied: a message may have 90 MB."""
    end = 8 + int.from_bytes(content[:8], "little")
    return dict(json.loads(content[8:end])), end
