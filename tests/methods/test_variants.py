"""The two variants of a method."""

from __future__ import annotations

import pytest

from feddrm.errors import SettingError
from feddrm.methods import FedAS
from feddrm.methods.variants import VARIANTS, check_variant


def test_both_variants_pass_and_others_are_refused():
    for variant in VARIANTS:
        check_variant(FedAS(variant=variant))
    with pytest.raises(SettingError, match=r"fedas: unknown variant 'papr': choose 'paper' .* or 'original'"):
        check_variant(FedAS(variant="papr"))
