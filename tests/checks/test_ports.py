"""Ports that can and cannot be used."""

from __future__ import annotations

import socket

from feddrm.checks.ports import LOOPBACK, why_taken


def test_a_port_is_taken_while_another_program_listens_on_it() -> None:
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        assert why_taken(LOOPBACK, port) == "Address already in use"
    assert why_taken(LOOPBACK, port) is None
