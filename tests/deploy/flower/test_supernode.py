"""The SuperNode's shorter waits: the parts of Flower that they change are there."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest
from flwr.supernode import start_client_internal

pytestmark = pytest.mark.slow


def test_the_first_wait_for_a_part_of_a_message_is_shortened() -> None:
    """In a process of its own, because it changes Flower."""
    script = (
        "from flwr.supercore.inflatable import inflatable_utils as u\n"
        "from feddrm.deploy.flower.supernode import shorten_first_backoff\n"
        "fetches = (u.pull_objects, u.pull_and_inflate_object_from_tree)\n"
        "before = [f.__kwdefaults__['initial_backoff'] for f in fetches]\n"
        "shorten_first_backoff()\n"
        "print(before, [f.__kwdefaults__['initial_backoff'] for f in fetches])\n"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed == "[1, 1] [0.05, 0.05]\n"


def test_the_module_whose_time_is_replaced_only_sleeps() -> None:
    """``main`` replaces ``time`` in this module to shorten its pauses; other functions of ``time`` would be missing."""
    assert set(re.findall(r"\btime\.(\w+)", inspect.getsource(start_client_internal))) == {"sleep"}
