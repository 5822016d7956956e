"""The W3C trace context: reading and writing the headers ``traceparent`` and ``tracestate``.

See https://www.w3.org/TR/trace-context/. A request without a valid ``traceparent`` begins a trace of its own, and then
its ``tracestate`` is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import getrandbits
from typing import NamedTuple

TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
KEY = rb"[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13}"
MEMBER = re.compile(rb"(" + KEY + rb")=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")
MAX_MEMBERS = 32
MAX_STATE = 512  # characters of a tracestate that are passed on
LONG_MEMBER = 128  # where a tracestate is too long, members above this length go first
SAMPLED = 1


class TraceContext(NamedTuple):
    """The caller's place in a trace: ids as lower-case hex, whether the caller records it, and vendors' state."""

    trace_id: str
    parent_id: str
    sampled: bool
    tracestate: str = ""


def read_trace_context(parents: Sequence[bytes], states: Sequence[bytes]) -> TraceContext | None:
    """The context in all ``traceparent`` and ``tracestate`` headers of a request; None without a valid one.

    Versions above 00 may have more fields, which are ignored.
    """
    match = TRACEPARENT.fullmatch(parents[0].decode("latin-1")) if len(parents) == 1 else None
    if match is None:
        return None
    version, trace_id, parent_id, flags, more = match.groups()
    if version == "00" and more is not None:
        return None
    sampled = bool(int(flags, 16) & SAMPLED)
    return TraceContext(trace_id, parent_id, sampled, _tracestate(states) if states else "")


def write_traceparent(trace_id: str, span_id: str, sampled: bool) -> str:
    """The header in version 00."""
    return f"00-{trace_id}-{span_id}-{'01' if sampled else '00'}"


def new_trace_id() -> str:
    """A random id that is not zero."""
    return f"{getrandbits(128) or 1:032x}"


def new_span_id() -> str:
    """A random id that is not zero."""
    return f"{getrandbits(64) or 1:016x}"


def _tracestate(headers: Sequence[bytes]) -> str:
    """The list of all headers, shortened to its limits; empty if any member is malformed or occurs twice."""
    members = [member for part in b",".join(headers).split(b",") if (member := part.strip(b" \t"))]
    matches = [MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in matches if match is not None}
    if len(members) > MAX_MEMBERS or len(keys) < len(members):
        return ""
    if sum(map(len, members)) + len(members) - 1 > MAX_STATE:
        members = [member for member in members if len(member) <= LONG_MEMBER]
    while sum(map(len, members)) + len(members) - 1 > MAX_STATE:
        members.pop()
    return b",".join(members).decode()
