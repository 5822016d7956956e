"""Flower's SuperNode, with other waits and notes: ``python -m feddrm.deploy.flower.supernode SECONDS ARGS...``.

Flower 1.41 looks for a new message every three seconds, and waits one second for a part of a message that is not
there yet. No option changes that. A fit of forty short steps would spend two minutes waiting. Nor does Flower say in
words why it cannot connect; the notes to the supervisor do.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient

from feddrm.deploy.flower.pauses import MESSAGE, IdlePause, shorten_first_backoff
from feddrm.deploy.flower.supervisor import note
from feddrm.deploy.site.site_status import CONNECTED
from feddrm.deploy.tls_files import ASK_FOR_IT
from feddrm.io.connection_errors import FOREIGN, NOT_TLS, OLD_AUTHORITY, SPEAKS_TLS, explain

NO_MESSAGE = 3.0  # seconds that Flower waits where there is no message
STILL_ONLINE = (
    "the server still counts another process of this site as connected: it is tried again; after more than a minute, "
    "look for a copy of this folder that runs elsewhere, and stop it"
)
SITE_WORDS = {  # what a site's administrator can do
    FOREIGN: "the server's certificate is signed by another authority than ca.crt here: get ca.crt from the server",
    OLD_AUTHORITY: f"ca.crt here has expired: {ASK_FOR_IT}, or set this machine's clock",
    NOT_TLS: "the server does not speak TLS on this port: check 'server' in site.yaml, or ask for its certificate",
    SPEAKS_TLS: "the server speaks TLS, and site.yaml says 'insecure: true': remove that line",
}


def with_message_notes(pull: Callable[..., int | None]) -> Callable[..., int | None]:
    """Flower's function that fetches a message; it also notes that one has come, so that nobody waits for it."""

    def noted(*arguments: Any, **options: Any) -> int | None:
        run = pull(*arguments, **options)
        if run is not None:
            note(MESSAGE)
        return run

    return noted


def with_notes(call: Callable[..., Any]) -> Callable[..., Any]:
    """The client's call, which also notes whether the server can be reached, whenever that changes."""
    last = [""]

    def tell(text: str) -> None:
        if text != last[0]:
            last[0] = text
            note(text)

    def noted(*arguments: Any, **options: Any) -> Any:
        try:
            reply = call(*arguments, **options)
        except httpx.HTTPError as error:
            tell(refusal(error) or CONNECTED)
            raise
        tell(CONNECTED)
        return reply

    return noted


def refusal(error: httpx.HTTPError) -> str | None:
    """Why the site is not connected; None if the server answered it as one of its own."""
    if not isinstance(error, httpx.HTTPStatusError):
        reason = explain(error, str(error.request.url))
        return SITE_WORDS.get(reason, reason)
    status, path = error.response.status_code, error.request.url.path
    if status == 401 or (status == 412 and path.endswith("activate-node")):
        try:
            answer = json.loads(error.response.text)
            return str(answer.get("extra") or (STILL_ONLINE if status == 412 else answer["detail"]))
        except (ValueError, AttributeError, KeyError):
            return f"the server answers {status}"
    return f"the server answers {status}" if status >= 500 else None


def main() -> None:
    """Run the SuperNode. The first argument is the shortest pause of its main loop."""
    pause = IdlePause(float(sys.argv.pop(1)))
    push = start_client_internal._push_messages

    def sleep(seconds: float) -> None:
        """Flower's pauses: three seconds without a message, less while a reply is on its way."""
        time.sleep(min(seconds, pause.seconds if seconds >= NO_MESSAGE else pause.shortest))

    def push_and_reset(*arguments: Any, **options: Any) -> None:
        push(*arguments, **options)
        pause.reset()

    start_client_internal._push_messages = push_and_reset
    start_client_internal._pull_and_store_message = with_message_notes(start_client_internal._pull_and_store_message)
    start_client_internal.time = SimpleNamespace(sleep=sleep)  # type: ignore[attr-defined, assignment]
    FleetHttpClient._unary_unary = with_notes(FleetHttpClient._unary_unary)  # type: ignore[method-assign]
    shorten_first_backoff()
    flower_supernode()


if __name__ == "__main__":
    main()
