"""The class names of CIFAR."""

from __future__ import annotations

from feddrm.data.datasets.cifar_names import CIFAR10, CIFAR20, CIFAR100


def test_class_names() -> None:
    assert (len(CIFAR10), len(CIFAR20), len(CIFAR100)) == (10, 20, 100)
    assert (CIFAR10[9], CIFAR20[9], CIFAR100[99]) == ("truck", "large_man-made_outdoor_things", "worm")
    assert list(CIFAR100) == sorted(CIFAR100)
