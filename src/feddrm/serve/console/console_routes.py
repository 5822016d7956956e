"""The console at ``/``: three static files, and the figures they show."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Query, Request
from PIL import Image
from starlette.responses import Response
from torch import Tensor

from feddrm.serve.gateway import Gateway
from feddrm.serve.http.error_responses import REFUSALS, Refusal, answer_json
from feddrm.serve.http.fast_routes import authorise
from feddrm.serve.schemas import ErrorAnswer

FILES = Path(__file__).parent / "static"
KINDS = {"index.html": "text/html", "console.css": "text/css", "console.js": "text/javascript"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def add_console(
    app: FastAPI, gateway: Gateway, facts: Mapping[str, Any] | None = None, gallery: Tensor | None = None
) -> None:
    """The pages. ``facts`` and ``gallery`` are what the run keeps of its data, for the federation view and samples."""
    pages = {name: (FILES / name).read_bytes() for name in KINDS}
    known = {str(client["name"]): client for client in (facts or {}).get("clients", ())}

    def page(name: str) -> Response:
        return Response(pages[name], media_type=KINDS[name], headers={"Content-Security-Policy": POLICY})

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return page("index.html")

    @app.get("/console/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        if name not in KINDS:
            raise Refusal(404, "no such file")
        return page(name)

    @app.get("/v1/federation", responses=REFUSALS)
    async def federation(request: Request) -> Response:
        """Every client: its data in figures, its health, its share of the decisions so far."""
        authorise(request, gateway.keys, "admin")
        router, taken = gateway.holding.router, gateway.taken
        total = sum(taken.values())
        peers = gateway.registry.peers
        clients = [
            {
                "client": name,
                "shift": known.get(name, {}).get("shift"),
                "class_counts": known.get(name, {}).get("class_counts"),
                "train": known.get(name, {}).get("train"),
                "samples": 0 if gallery is None or name not in known else gallery.shape[1],
                "decisions": taken.get(name, 0),
                "share": taken.get(name, 0) / total if total else 0.0,
                "peer": peers[name].as_dict() if name in peers else None,
            }
            for name in router.names
        ]
        return answer_json(
            {
                "artifact": gateway.holding.version,
                "classes": list(gateway.classes),
                "shape": list(router.shape),
                "features": router.recipe.name,
                "decisions": total,
                "abstained": gateway.abstained,
                "audit": {"written": gateway.audit.written, "dropped": gateway.audit.dropped,
                          "trouble": gateway.audit.trouble is not None},
                "clients": clients,
            }
        )  # fmt: skip

    @app.get("/v1/traffic", responses=REFUSALS)
    async def traffic(request: Request, after: int = Query(0, ge=0)) -> Response:
        """The latest decisions, those numbered above ``after``; no payloads. ``begun``: when numbers began at one."""
        authorise(request, gateway.keys, "admin")
        found = [
            {"number": number, "label": label, **record._asdict()}
            for number, label, record in gateway.recent
            if number > after
        ]
        return answer_json({"begun": gateway.begun, "decisions": found})

    @app.get(
        "/v1/samples/{client}/{number}",
        responses={200: {"content": {"image/png": {}}}, 404: {"model": ErrorAnswer}, **REFUSALS},
    )
    async def sample(request: Request, client: str, number: int) -> Response:
        """A picture that the run keeps of a client's data, to try the router on."""
        authorise(request, gateway.keys, "admin")
        if gallery is None or client not in known or not 0 <= number < gallery.shape[1]:
            raise Refusal(404, "no such sample")
        pixels = gallery[list(known).index(client), number].permute(1, 2, 0).numpy()
        out = io.BytesIO()
        Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(out, "PNG")
        return Response(out.getvalue(), media_type="image/png")
