"""The two variants of some methods: as simplified in the paper's experiments, and as first published."""

from __future__ import annotations

from typing import Protocol

from feddrm.errors import SettingError

VARIANTS = ("paper", "original")


class HasVariant(Protocol):
    """A method that has both variants."""

    @property
    def name(self) -> str: ...

    @property
    def variant(self) -> str: ...


def check_variant(method: HasVariant) -> None:
    """Refuse any other variant."""
    if method.variant not in VARIANTS:
        raise SettingError(
            f"{method.name}: unknown variant '{method.variant}': choose 'paper' (as in its experiments) or 'original'"
        )
