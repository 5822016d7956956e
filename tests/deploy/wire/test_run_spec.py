"""The run spec: its passage through JSON, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from feddrm.deploy.wire.run_spec import RunSpec, check_run
from refusal import refused

SPEC = RunSpec(
    run="first",
    names=("oslo", "lima"),
    sizes=(30, 20),
    classes=("healthy", "sick"),
    shape=(4,),
    dtype="float32",
    columns=("a", "b", "c", "d"),
    crop=False,
    scale=((0.0,), (1.0,)),
    method={"name": "feddrm"},
    model={"name": "mlp"},
    plan={"rounds": 2},
    privacy={"clip": 1.0, "noise": 3.0},
)


def test_a_run_spec_comes_back_from_json() -> None:
    values = SPEC.as_dict()
    assert json.loads(json.dumps(values)) == values, "plain values"
    assert RunSpec.of(values) == SPEC


def test_a_newer_run_spec_may_have_more_fields() -> None:
    assert RunSpec.of({**SPEC.as_dict(), "more": 1}) == SPEC


def test_a_missing_field_is_named() -> None:
    values = SPEC.as_dict()
    del values["classes"]
    with refused("the server's run spec lacks 'classes'", "same feddrm"):
        RunSpec.of(values)


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "a.b", 7, None])
def test_a_run_name_that_could_leave_its_folder_is_refused(name: Any) -> None:
    with refused("names folders"):
        check_run(name)
    with refused("names folders"):
        RunSpec.of({**SPEC.as_dict(), "run": name})
