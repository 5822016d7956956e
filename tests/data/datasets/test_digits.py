"""Digits: all samples are there, and each client has its own scanner."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from feddrm.data import load
from feddrm.data.datasets import digits
from feddrm.data.datasets.digits import SCANNERS, STRENGTH
from feddrm.data.partition import partition
from refusal import refused


def fingerprint(x: torch.Tensor) -> str:
    return hashlib.sha256(x.numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("file", [digits.FILE, "moved.csv.gz"])
def test_the_originals_are_those_of_scikit_learn_wherever_it_keeps_them(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digits, "FILE", file)
    images, labels = digits.originals()
    np.testing.assert_array_equal(images, load_digits().images / 16)
    np.testing.assert_array_equal(labels, load_digits().target)


@pytest.mark.slow
def test_the_digits_are_loaded_without_scikit_learn() -> None:
    """Its import took nearly a third of the CPU time of a training of one round."""
    script = "import sys, feddrm; feddrm.load('digits'); print('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"


def test_all_samples_are_there_and_labels_untouched() -> None:
    fed = load("digits", seed=0)
    assert len(fed) == 8
    assert fed.shape == (1, 8, 8)
    assert fed.counts().sum(0).tolist() == np.bincount(load_digits().target).tolist()
    assert fed.counts().sum() == 1797


def test_without_shift_the_scans_are_the_originals() -> None:
    originals = np.rint(load_digits().images / 16 * 255).astype(np.uint8)
    known = {(image.tobytes(), int(y)) for image, y in zip(originals, load_digits().target, strict=True)}
    fed = load("digits", shift="none", seed=1)
    for client in fed.clients:
        assert client.shift == "none"
        for split in (client.train, client.test):
            assert {(x.numpy().tobytes(), int(y)) for x, y in zip(split.x, split.y, strict=True)} <= known


def test_seeds_change_the_noise_and_levels_the_shift() -> None:
    a, b, c = load("digits", seed=3), load("digits", seed=3), load("digits", seed=4)
    assert fingerprint(a.clients[0].train.x) == fingerprint(b.clients[0].train.x) != fingerprint(c.clients[0].train.x)
    low = load("digits", seed=3, shift="low")
    assert torch.equal(low.clients[5].train.y, a.clients[5].train.y), "the shift must not move samples"
    assert low.clients[5].shift != a.clients[5].shift


def test_scanners_are_visibly_different() -> None:
    """Grey level statistics of the same eight digits tell any two scanners apart."""
    gallery = load("digits").gallery
    assert gallery is not None
    assert gallery.shape == (8, 8, 1, 8, 8)
    flat = gallery.double().flatten(1)
    for i in range(8):
        for j in range(i):
            assert (flat[i] - flat[j]).abs().mean() > 25, (SCANNERS[i].name, SCANNERS[j].name)


def test_every_client_has_its_own_noise_generator() -> None:
    """The noise of training, then of test samples comes from a generator keyed by seed and client."""
    bundle = load_digits()
    parts = partition(bundle.target, clients=9, kind="dirichlet", alpha=0.3, shards=5, seed=6)
    fed = load("digits", clients=9, seed=6, shift="mid")
    for i in (0, 5, 8):
        rng = np.random.default_rng((6, i))
        for index, split in zip(parts[i], (fed.clients[i].train, fed.clients[i].test), strict=True):
            scanned = SCANNERS[i % 8](bundle.images[index] / 16, STRENGTH["mid"], rng)
            assert np.array_equal(split.x[:, 0].numpy(), scanned)


def test_noise_is_new_for_every_image() -> None:
    image = load_digits().images[:1].repeat(2, axis=0) / 16
    scanned = SCANNERS[0](image, 1.0, np.random.default_rng(0))
    assert not np.array_equal(scanned[0], scanned[1])
    assert set(STRENGTH) == {"none", "low", "mid", "high"}


def test_more_clients_than_scanners() -> None:
    fed = load("digits", clients=10, alpha=5.0)
    assert fed.names[:1] + fed.names[8:] == ("flatbed", "flatbed-2", "negative-2")


def test_a_shift_that_digits_do_not_have_is_refused() -> None:
    with refused("unknown shift of digits 'pool'", "none, low, mid, high"):
        load("digits", shift="pool")
