"""The ports that commands use unless they are told otherwise, and whether a port can be used."""

from __future__ import annotations

import socket

GATEWAY, PREDICTOR, FEDERATION = 8080, 9000, 8000
LOOPBACK = "127.0.0.1"


def why_taken(host: str, port: int) -> str | None:
    """Why a program cannot listen on this port, in the system's words; None if it can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None
