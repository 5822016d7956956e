"""The watch on drift: a gateway's queries are compared with the training mixture of the artifact that it serves."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddrm.router.query_drift import FALSE_ALARM, HORIZON, LEVEL, WINDOW, DriftMonitor, drift_statistics
from feddrm.serve.loaded_router import Decisions, LoadedRouter
from feddrm.serve.telemetry.background_writer import BackgroundWriter
from feddrm.serve.telemetry.metrics import Metrics

log = logging.getLogger("feddrm.serve")
CAPACITY = 10_000  # requests that may wait for the test; more are left out of it
FLUSH_SECONDS = 0.25
Numbers = NDArray[np.floating[Any]]
Item = tuple[LoadedRouter, Numbers, Numbers]  # log densities and strangeness of a request's samples
NO_REFERENCE = (
    "drift is not watched: this router has no reference, because it is older, deployed, trained with random crops, "
    "has more than 100 clients, or clients left or joined; fit it again with 'feddrm fit-router'"
)


class DriftWatch:
    """``add`` never blocks. An alarm lasts until as many queries as the rate of false alarms is stated for had none."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.p_value: float | None = None  # of the latest test
        self.alarm_time: float | None = None  # of the latest alarm
        self._artifact = ""
        self._monitor: DriftMonitor | None = None
        self._recent: deque[bool] = deque(maxlen=HORIZON // WINDOW)
        self._writer: BackgroundWriter[Item] = BackgroundWriter(
            "drift", self._test, capacity=CAPACITY, flush_seconds=FLUSH_SECONDS
        )

    @property
    def alarm(self) -> bool:
        return any(self._recent)

    def add(self, served: LoadedRouter, decisions: Decisions) -> None:
        if decisions.strangeness is not None:  # without the features, which may be large
            self._writer.put((served, decisions.log_density, decisions.strangeness))

    def close(self) -> None:
        """Test what waits, then stop."""
        self._writer.close()

    def as_dict(self) -> dict[str, Any]:
        """What the console shows."""
        return {
            "watched": self._monitor is not None or not self._artifact,
            "alarm": self.alarm,
            "alarm_time": self.alarm_time,
            "p_value": self.p_value,
            "window": WINDOW,
            "queries": 0 if self._monitor is None else self._monitor.queries,
            "false_alarm": FALSE_ALARM,
            "horizon": HORIZON,
        }

    def _test(self, items: Sequence[Item]) -> None:
        for _, group in groupby(items, key=lambda item: item[0].version):
            try:
                self._test_together(list(group))
            except Exception:
                log.exception("drift cannot be tested")

    def _test_together(self, items: Sequence[Item]) -> None:
        """Queries of one artifact. Many small requests are computed at once."""
        served = items[0][0]
        if served.version != self._artifact:
            self._start(served)
        if self._monitor is None:
            return
        densities, strangeness = (np.concatenate([item[part] for item in items]) for part in (1, 2))
        for test in self._monitor.add(drift_statistics(densities, strangeness)):
            self._judge(test.p_value)

    def _start(self, served: LoadedRouter) -> None:
        """Begin again with the reference of a new artifact."""
        reference = served.router.calibration.reference
        self._artifact, self.p_value = served.version, None
        self._recent.clear()
        self._monitor = None if reference is None else DriftMonitor(reference)
        if reference is None:
            log.warning(NO_REFERENCE, extra={"fields": {"artifact": served.version}})

    def _judge(self, p_value: float) -> None:
        before, alarm = self.alarm, p_value < LEVEL
        self.p_value = p_value
        self._recent.append(alarm)
        if alarm:
            self.alarm_time = time.time()
        if alarm and not before:
            fields = {"artifact": self._artifact, "p_value": float(np.format_float_scientific(p_value, 3))}
            log.warning("recent queries differ from the training data", extra={"fields": fields})
        self.metrics.drift_windows.labels("alarm" if alarm else "usual").inc()
        self.metrics.drift_p_value.set(p_value)
        self.metrics.drift_alarm.set(self.alarm)
