"""What every refusal has in common: one line that names the place, the value and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from feddrm.errors import FeddrmError


@contextmanager
def refused(*parts: str) -> Iterator[pytest.ExceptionInfo[FeddrmError]]:
    """One line that has every part."""
    with pytest.raises(FeddrmError) as caught:
        yield caught
    text = str(caught.value)
    assert "\n" not in text
    for part in parts:
        assert part in text, text
