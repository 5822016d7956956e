"""The names of the official files."""

from __future__ import annotations

from feddrm.io.official_files import HEART, HUNDRED, alternatives


def test_every_set_of_files_holds_a_whole_dataset() -> None:
    assert alternatives("cifar100") == (
        ("cifar100_0.npz", "cifar100_1.npz"),
        ("cifar-100-binary.tar.gz",),
        ("cifar-100-binary",),
    )
    assert alternatives("cifar100") == HUNDRED.alternatives
    assert alternatives("heart")[0] == tuple(remote.filename for remote in HEART)
    assert alternatives("tcga_brca")[1][0] == "tcga_brca/brca.csv"
