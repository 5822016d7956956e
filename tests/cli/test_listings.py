from __future__ import annotations

import json
import re

import pytest

from cli.conftest import call
from feddrm.data import Dataset
from feddrm.methods import Method
from feddrm.models import Model


def test_listings_name_every_dataset_model_and_method(capsys: pytest.CaptureFixture[str]) -> None:
    for verb, family in (
        ("datasets", Dataset.family),
        ("models", Model.family),
        ("methods", Method.family),
    ):
        code, out, err = call(capsys, verb)
        assert (code, err) == (0, "")
        assert all(re.search(rf"^ *{name} ", out, re.MULTILINE) for name in family)
        code, out, _ = call(capsys, verb, "--json")
        assert json.loads(out) == {name: member.summary() for name, member in family.items()}
