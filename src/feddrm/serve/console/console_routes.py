"""The console's paths: static files at ``/`` and the figures that they show."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi import Path as PathParameter
from PIL import Image
from starlette.responses import Response

from feddrm.io.dataset_summary import DatasetSummary
from feddrm.io.page_files import SECURITY_POLICY, content_type, page_files
from feddrm.serve.gateway import Gateway
from feddrm.serve.http.authorise import authorise
from feddrm.serve.http.error_responses import ERROR_RESPONSES, ApiError, json_response
from feddrm.serve.schemas import ErrorAnswer

After = Annotated[int, Query(ge=0, description="only decisions after the one with this number")]
ClientName = Annotated[str, PathParameter(description="the name of a client")]
PictureNumber = Annotated[int, PathParameter(description="of the client's pictures, from 0")]
STATIC = Path(__file__).parent / "static"


def add_console_routes(app: FastAPI, gateway: Gateway, summary: DatasetSummary | None, samples: bool) -> None:
    """Add the console. It shows the run's dataset summary: client figures and, with ``samples``, its pictures."""
    files = page_files(STATIC)
    clients = {} if summary is None else {str(client["name"]): client for client in summary.facts["clients"]}
    gallery = summary.gallery if summary is not None and samples else None
    labels = summary.picture_labels if summary is not None and samples else {}

    def static_file(name: str) -> Response:
        headers = {"Content-Security-Policy": SECURITY_POLICY}
        return Response(files[name], media_type=content_type(name), headers=headers)

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return static_file("index.html")

    @app.get("/console/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        if name not in files:
            raise ApiError(404, f"no file '{name[:64]}': the console is at /")
        return static_file(name)

    @app.get("/v1/federation", responses=ERROR_RESPONSES)
    async def federation(request: Request) -> Response:
        """Every client: its data in figures, its health, its share of the decisions so far."""
        await authorise(request, gateway.access, "admin")
        router, total = gateway.router.router, gateway.decisions_by_client.total()
        pictures = 0 if gallery is None else gallery.shape[1]
        return json_response(
            {
                "artifact": gateway.router.version,
                "classes": list(gateway.classes),
                "shape": list(router.shape),
                "features": router.recipe.name,
                "decisions": total,
                "abstained": gateway.abstained,
                "audit": {"written": gateway.audit.written, "dropped": gateway.audit.dropped,
                          "trouble": gateway.audit.trouble is not None},
                "clients": [client_figures(name, total, pictures) for name in router.names],
                "challenger": gateway.artifacts.challenger_figures(),
                "drift": None if gateway.drift is None else gateway.drift.as_dict(),
                "outcomes": gateway.use_log is not None,
            }
        )  # fmt: skip

    def client_figures(name: str, total: int, pictures: int) -> dict[str, Any]:
        known, upstream = clients.get(name, {}), gateway.upstreams.get(name)
        decisions = gateway.decisions_by_client.get(name, 0)
        return {
            "client": name,
            "shift": known.get("shift"),
            "class_counts": known.get("class_counts"),
            "train": known.get("train"),
            "samples": pictures if name in clients else 0,
            "sample_labels": labels.get(name, []),
            "decisions": decisions,
            "share": decisions / total if total else 0.0,
            "peer": None if upstream is None else upstream.as_dict(),
        }

    @app.get("/v1/traffic", responses=ERROR_RESPONSES)
    async def traffic(request: Request, after: After = 0) -> Response:
        """The latest decisions with a number above ``after``; no payloads. ``begun``: the gateway's start time."""
        await authorise(request, gateway.access, "admin")
        decisions = [
            {"number": number, "label": label, **record._asdict()}
            for number, label, record in gateway.recent
            if number > after
        ]
        return json_response({"begun": gateway.start_time, "decisions": decisions})

    @app.get(
        "/v1/samples/{client}/{number}",
        responses={200: {"content": {"image/png": {}}}, 404: {"model": ErrorAnswer}, **ERROR_RESPONSES},
    )
    async def sample(request: Request, client: ClientName, number: PictureNumber) -> Response:
        """A picture that the run keeps of a client's data, to try the router on."""
        await authorise(request, gateway.access, "admin")
        if gallery is None or client not in clients or not 0 <= number < gallery.shape[1]:
            raise ApiError(404, f"no sample {number} of client '{client[:64]}': /v1/federation says how many there are")
        pixels = gallery[list(clients).index(client), number].transpose(1, 2, 0)
        png = io.BytesIO()
        Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(png, "PNG")
        return Response(png.getvalue(), media_type="image/png")
