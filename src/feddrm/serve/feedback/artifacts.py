"""The artifacts of a gateway: the one that it serves and a challenger; how they are read, replaced and promoted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from feddrm.errors import FeddrmError
from feddrm.predictor.predictor import known_classes
from feddrm.registry import listing
from feddrm.router.artifact import artifact_version
from feddrm.router.router import ONE_SCALE
from feddrm.serve.feedback.challenger import Challenger
from feddrm.serve.feedback.serving_state import ServingState, artifact_folder
from feddrm.serve.http.error_responses import ApiError
from feddrm.serve.loaded_router import LoadedRouter
from feddrm.serve.settings import GatewaySettings
from feddrm.serve.telemetry.metrics import Metrics
from feddrm.serve.upstream.upstreams import Upstreams

log = logging.getLogger("feddrm.serve")


class Artifacts:
    """``served`` answers; a ``challenger`` answers some requests or decides beside it. Changes are made one by one.

    ``classes`` are the names of the gateway's classes, or their number where they have no names.
    """

    def __init__(
        self,
        run: Path,
        settings: GatewaySettings,
        metrics: Metrics,
        upstreams: Upstreams,
        classes: tuple[str, ...] | int,
    ) -> None:
        self.run, self.settings, self.metrics, self.upstreams, self.classes = run, settings, metrics, upstreams, classes
        self.state = ServingState.read(run)
        self._lock = asyncio.Lock()
        self.served = self._load(self.folder)
        self._serve(self.served)
        self.challenger = self._load_challenger()

    @property
    def folder(self) -> Path:
        """The served artifact's."""
        return self.state.folder(self.run)

    def answering(self, request_id: str) -> LoadedRouter:
        """The artifact that answers the request of this id."""
        challenger = self.challenger
        return self.served if challenger is None or not challenger.takes(request_id) else challenger.loaded

    def challenger_figures(self) -> dict[str, Any] | None:
        """What the console shows of the challenger."""
        challenger = self.challenger
        return None if challenger is None else {"artifact": challenger.loaded.version, "share": challenger.share}

    async def reload(self) -> LoadedRouter:
        """Read the served artifact again. If it cannot be read or used, the old one stays."""
        async with self._lock:  # one after the other, so that the latest artifact is the one that stays
            try:
                loaded = await asyncio.to_thread(self._load, self.folder)
            except Exception as error:
                self.metrics.reloads.labels("failed").inc()
                log.error("reload failed, the old artifact stays", extra={"fields": {"reason": str(error)}})
                raise
            self.metrics.reloads.labels("done").inc()
            self._serve(loaded)
        log.info("artifact loaded", extra={"fields": {"artifact": loaded.version}})
        self.warn_of_own_values()
        return loaded

    async def promote(self) -> LoadedRouter:
        """Let the challenger answer all requests, also after a restart."""
        async with self._lock:
            if self.challenger is None or self.settings.challenger is None:
                raise ApiError(409, "there is no challenger: start the gateway with --challenger")
            state = self.state.promoted(artifact_folder(self.settings.challenger))
            await self._change(state, self.challenger.loaded)
        return self.served

    async def rollback(self) -> LoadedRouter:
        """Give up the challenger or, where it was promoted, serve the artifact before it."""
        async with self._lock:
            if self.challenger is not None:
                await self._change(replace(self.state, rolled_back=self.challenger.loaded.version), self.served)
            elif self.state.artifact is not None:
                state = self.state.restored(self.served.version)
                await self._change(state, await asyncio.to_thread(self._load, state.folder(self.run)))
            else:
                raise ApiError(409, "there is neither a challenger nor a promoted artifact: nothing to roll back")
        return self.served

    async def watch(self) -> None:
        """Reload whenever the served artifact's version changes; a broken version is tried once."""
        tried = self.served.version
        while True:
            await asyncio.sleep(self.settings.reload_seconds)
            with contextlib.suppress(Exception):  # reload has logged it
                version = artifact_version(self.folder)
                if version not in ("", self.served.version, tried):
                    tried = version
                    await self.reload()

    def warn_of_own_values(self) -> None:
        """Log what the served artifact cannot do because clients treated their samples each in its own way."""
        router = self.served.router
        if router.own_scales:
            log.warning("every client has its own scale: raw pixels are refused", extra={"fields": {"do": ONE_SCALE}})
        if router.schema is not None and router.schema.filled:
            # Whose values would fill the gaps of a query is what the router is asked.
            log.warning(
                "in training every client filled missing values by its own; those of queries stay empty",
                extra={"fields": {"do": "train with common values (data heart: --set data.impute=common)"}},
            )

    def _load(self, folder: Path) -> LoadedRouter:
        """Read an artifact. Its clients must include those of ``clients.yaml``, and its classes must be ours."""
        loaded = LoadedRouter.load(folder, self.settings, self.metrics)
        for name in self.upstreams:
            if name not in loaded.names:
                raise FeddrmError(
                    f"{self.settings.clients}: the router knows no client '{name}' {listing(loaded.names)}: "
                    "remove it from the list, then start the gateway anew"
                )
        number = self.classes if isinstance(self.classes, int) else len(self.classes)
        if loaded.classes != number:
            raise FeddrmError(f"{folder} has {loaded.classes} classes, not {number}: start the gateway anew")
        classes = loaded.class_names or known_classes(self.run, loaded.classes)
        if classes is not None and not isinstance(self.classes, int) and classes != self.classes:
            raise FeddrmError(f"{folder} has other classes ({', '.join(classes)}): start the gateway anew")
        return loaded

    def _load_challenger(self) -> Challenger | None:
        """The challenger of the settings, unless it is the served artifact or was rolled back."""
        if self.settings.challenger is None:
            return None
        loaded = self._load(artifact_folder(self.settings.challenger))
        if loaded.version in (self.served.version, self.state.rolled_back):
            why = "it is the served artifact" if loaded.version == self.served.version else "it was rolled back"
            log.warning("the challenger is not used", extra={"fields": {"artifact": loaded.version, "reason": why}})
            return None
        self.metrics.challenger.labels(loaded.version).set(self.settings.challenger_share)
        counter = self.metrics.shadow.labels
        return Challenger(loaded, self.settings, lambda result, number: counter(loaded.version, result).inc(number))

    def _serve(self, loaded: LoadedRouter) -> None:
        """Let an artifact answer all later requests."""
        self.served = loaded
        for upstream in self.upstreams.values():
            upstream.fit = loaded.fit
        self.metrics.artifact.clear()
        self.metrics.artifact.labels(loaded.version).set(1)

    async def _change(self, state: ServingState, loaded: LoadedRouter) -> None:
        """Serve an artifact without a challenger. The new state is on the disk before a request sees the artifact."""
        await asyncio.to_thread(state.write, self.run)
        challenger, self.challenger, self.state = self.challenger, None, state
        self._serve(loaded)
        self.metrics.challenger.clear()
        if challenger is not None:
            await asyncio.to_thread(challenger.close)
        log.info("artifact served", extra={"fields": {"artifact": loaded.version}})
