"""Other dates than today's, for certificates that are not valid yet and for clocks that are wrong."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def days_from_now(days: float) -> Iterator[None]:
    """A time in which ``datetime.now`` differs by so many days, in this process."""

    class Moved(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Moved:  # type: ignore[override]
            return super().now(tz) + datetime.timedelta(days=days)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datetime, "datetime", Moved)
        yield
