from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddrm.serve.telemetry.trace_context import (
    TraceContext,
    new_span_id,
    new_trace_id,
    read_trace_context,
    write_traceparent,
)

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{PARENT}-01".encode()


def state(*headers: str) -> str:
    context = read_trace_context([GOOD], [header.encode() for header in headers])
    assert context is not None
    return context.tracestate


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("02", False), ("ff", True)])
def test_the_first_flag_says_whether_the_caller_records(flags: str, sampled: bool) -> None:
    given = f"00-{TRACE}-{PARENT}-{flags}".encode()
    assert read_trace_context([given], []) == TraceContext(TRACE, PARENT, sampled)


@pytest.mark.parametrize(
    "given",
    [
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT.upper()}-01",
        f"00-{TRACE[:-1]}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-1",
        f"00-{TRACE}-{PARENT}-0x",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-01-",
        f"00-{TRACE}-{PARENT}-01-more",
        f"ff-{TRACE}-{PARENT}-01",
        f"0-{TRACE}-{PARENT}-01",
        f"01-{TRACE}-{PARENT}-01more",
        f" 00-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01\n",
        "",
        "nonsense",
    ],
)
def test_a_bad_traceparent_is_none(given: str) -> None:
    assert read_trace_context([given.encode()], [b"a=1"]) is None


def test_two_traceparents_are_none() -> None:
    assert read_trace_context([GOOD, GOOD], []) is None
    assert read_trace_context([], [b"a=1"]) is None


@pytest.mark.parametrize("more", ["", "-", "-what-will-be"])
def test_later_versions_may_have_more_fields(more: str) -> None:
    assert read_trace_context([f"cc-{TRACE}-{PARENT}-03{more}".encode()], []) == TraceContext(TRACE, PARENT, True)


def test_a_tracestate_is_one_list_over_all_headers() -> None:
    assert state("congo=t61rcWkgMzE,rojo=00f067aa0ba902b7") == "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"
    assert state("a=1", "b=2 , ,c=3\t") == "a=1,b=2,c=3"
    assert state("tenant@system=x y", "0a@b=*/-_") == "tenant@system=x y,0a@b=*/-_"
    assert state("") == ""
    assert state(f"{'k' * 256}=v") == f"{'k' * 256}=v"


@pytest.mark.parametrize(
    "bad",
    ["a", "=1", "A=1", "1a=1", "a=1=2", "a=é", "a=\x01", "a=", "a=1,a=2", "a@=1", "a@1=1", f"{'k' * 257}=v",
     f"a={'v' * 257}", f"{'t' * 242}@s=1", f"a@{'s' * 15}=1", "a =1"],
)  # fmt: skip
def test_a_bad_member_leaves_no_tracestate(bad: str) -> None:
    assert state(f"good=1,{bad}") == ""
    assert state("good=1") == "good=1"


def test_limits_of_a_tracestate() -> None:
    members = [f"k{i}=v" for i in range(33)]
    assert state(",".join(members[:32])) == ",".join(members[:32])
    assert state(",".join(members)) == ""
    long, short = f"long={'v' * 200}", [f"k{i}={'v' * 90}" for i in range(5)]
    assert state(",".join([long, *short])) == ",".join(short)  # the long one goes first
    many = [f"k{i}={'v' * 96}" for i in range(6)]
    kept = state(",".join(many))
    assert kept == ",".join(many[:5])  # then those at the end
    assert len(kept) <= 512 < len(",".join(many))


def test_what_is_written_can_be_read() -> None:
    trace, parent = new_trace_id(), new_span_id()
    for sampled in (False, True):
        header = write_traceparent(trace, parent, sampled)
        assert read_trace_context([header.encode()], []) == TraceContext(trace, parent, sampled)


@given(st.lists(st.binary(max_size=80), max_size=2), st.lists(st.binary(max_size=700), max_size=3))
def test_whatever_is_sent_the_context_is_well_formed(parents: list[bytes], states: list[bytes]) -> None:
    assert read_trace_context(parents, states) is None or parents
    context = read_trace_context([GOOD], states)
    assert context is not None
    assert len(context.tracestate) <= 512
    assert re.fullmatch(r"[\x20-\x7e]*", context.tracestate)
