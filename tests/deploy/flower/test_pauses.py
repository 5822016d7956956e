"""Waits that are shorter than Flower's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from feddrm.deploy.flower.pauses import LONGEST_PAUSE, IdlePause


@pytest.mark.slow
def test_the_first_wait_for_a_part_of_a_message_is_shortened() -> None:
    """In a process of its own, because it changes Flower."""
    script = (
        "from flwr.supercore.inflatable import inflatable_utils as u\n"
        "from feddrm.deploy.flower.pauses import shorten_first_backoff\n"
        "fetches = (u.pull_objects, u.pull_and_inflate_object_from_tree)\n"
        "before = [f.__kwdefaults__['initial_backoff'] for f in fetches]\n"
        "shorten_first_backoff()\n"
        "print(before, [f.__kwdefaults__['initial_backoff'] for f in fetches])\n"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed == "[1, 1] [0.05, 0.05]\n"


def test_pauses_grow_while_nothing_comes_and_are_short_again_after_a_message() -> None:
    now = [100.0]
    pause = IdlePause(0.25, clock=lambda: now[0])
    assert pause.seconds == 0.25
    now[0] += 20
    assert pause.seconds == pytest.approx(1.0), "a twentieth of the time without a message"
    now[0] += 3600
    assert pause.seconds == LONGEST_PAUSE
    pause.reset()
    assert pause.seconds == 0.25
    assert IdlePause(5.0, clock=lambda: now[0]).seconds == 5.0, "a site may ask for longer pauses"
