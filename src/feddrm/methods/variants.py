"""Some methods come in two forms: as the paper's experiments simplified them, and as first published."""

from __future__ import annotations

from typing import Protocol

from feddrm.errors import SettingError

VARIANTS = ("paper", "original")


class HasVariant(Protocol):
    """A method with both forms."""

    @property
    def name(self) -> str: ...

    @property
    def variant(self) -> str: ...


def check_variant(method: HasVariant) -> None:
    """Refuse any other form."""
    if method.variant not in VARIANTS:
        raise SettingError(
            f"{method.name}: unknown variant '{method.variant}': choose 'paper' (as in its experiments) or 'original'"
        )
