"""Masks: they cancel in the sum, hide a single message, and come from keys that their sites signed."""

from __future__ import annotations

import hashlib
from itertools import combinations

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from feddrm.deploy.provision.certificates import new_key
from feddrm.deploy.wire.fixed_point import Words
from feddrm.deploy.wire.masks import (
    BLOCK,
    MASK_PROTOCOL,
    add_masks,
    check_method,
    pair_seed,
    sign_mask_key,
    summed_fields,
    verify_mask_key,
)
from feddrm.methods import Method
from refusal import refused


def seeds_of(names: list[str]) -> dict[str, dict[str, bytes]]:
    """Seeds by site and other site, the same for both."""
    seeds: dict[str, dict[str, bytes]] = {name: {} for name in names}
    for one, other in combinations(names, 2):
        seeds[one][other] = seeds[other][one] = hashlib.sha256(f"{one} {other}".encode()).digest()
    return seeds


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.sampled_from([0, 1, 7, 1000, BLOCK - 1, BLOCK, BLOCK + 3]), st.integers(0, 2**32))
def test_the_masked_sum_is_the_sum_to_the_last_bit(sites: int, size: int, seed: int) -> None:
    names, generator = [f"site{i}" for i in range(sites)], np.random.default_rng(seed)
    seeds = seeds_of(names)
    plain: list[Words] = [generator.integers(0, 2**64, size, np.uint64) for _ in names]
    total = np.zeros(size, np.uint64)
    for name, words in zip(names, plain, strict=True):
        masked = words.copy()
        add_masks(masked, name, seeds[name])
        assert size < 7 or not (masked == words).any()
        total += masked
    assert (total == sum(plain)).all()
    if size:
        add_masks(total, names[0], {names[1]: seeds[names[0]][names[1]]})  # as if one site were missing
        assert not (total == sum(plain)).all()


@pytest.mark.parametrize("value", [0, 1, 2**40, 2**64 - 1])
def test_a_single_masked_message_looks_like_random_bytes(value: int) -> None:
    words = np.full(200_000, value, np.uint64)
    add_masks(words, "oslo", seeds_of(["oslo", "lima", "pune"])["oslo"])
    rows = words.view(np.uint8).reshape(-1, 8)
    for place in range(8):  # every byte of a word by itself, and pairs of neighbours
        assert chisquare(np.bincount(rows[:, place], minlength=256)).pvalue > 1e-4
    pairs = rows[:-1, 7].astype(int) // 16 * 16 + rows[1:, 7] // 16
    assert chisquare(np.bincount(pairs, minlength=256)).pvalue > 1e-4
    plain = np.full(200_000, value, np.uint64).view(np.uint8)
    assert chisquare(np.bincount(plain, minlength=256)).pvalue < 1e-9, "the test can fail"


def test_both_sites_find_the_same_seed_and_every_question_has_its_own() -> None:
    oslo, lima, pune = (X25519PrivateKey.generate() for _ in range(3))
    seed = pair_seed(oslo, lima.public_key(), "first 1")
    assert seed == pair_seed(lima, oslo.public_key(), "first 1")
    assert (
        len({seed, pair_seed(oslo, lima.public_key(), "first 2"), pair_seed(oslo, pune.public_key(), "first 1")}) == 3
    )


def test_masks_of_this_protocol_stay_the_same() -> None:
    """Sites of two releases whose masks differ add up to random numbers: such a change counts MASK_PROTOCOL up."""
    oslo, lima = (X25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))
    words = np.arange(3, dtype=np.uint64)
    add_masks(words, "oslo", {"lima": pair_seed(oslo, lima.public_key(), "first 1")})
    assert (MASK_PROTOCOL, words.tolist()) == (2, [6749575541048869317, 17234846955976616994, 10006251949179379147])


def test_what_leaves_a_site_beside_its_upload_is_part_of_the_sum() -> None:
    fields = summed_fields({"loss": 0.25, "right": 3, "tested": 5, "seconds": 1.0})
    assert {name: (value.dtype, value.item()) for name, value in fields.items()} == {
        "field/loss": (torch.float64, 0.25),
        "field/right": (torch.int64, 3),
        "field/tested": (torch.int64, 5),
    }
    assert summed_fields({"seconds": 1.0}) == {}


def test_a_key_that_gives_no_secret_is_refused() -> None:
    with refused("gives no secret"):
        pair_seed(X25519PrivateKey.generate(), X25519PublicKey.from_public_bytes(bytes(32)), "first 1")


def test_only_a_key_that_its_site_signed_for_this_run_is_accepted() -> None:
    signing, mask = new_key(), X25519PrivateKey.generate().public_key()
    signed = sign_mask_key(mask, "first", "lima", signing)
    assert verify_mask_key(signed, "first", "lima", signing.public_key()) == mask
    forged = sign_mask_key(mask, "first", "lima", new_key())  # the server has no site's key
    swapped = {**signed, "key": X25519PrivateKey.generate().public_key().public_bytes_raw().hex()}
    for bad in (forged, swapped, {}, {**signed, "signature": "no"}, "text", None):
        with refused("lima has not signed", "'first'", "keys/lima.pub"):
            verify_mask_key(bad, "first", "lima", signing.public_key())
    with refused("'second'"):  # replayed from another run
        verify_mask_key(signed, "second", "lima", signing.public_key())
    with refused("pune has not signed"):  # another site's
        verify_mask_key(signed, "first", "pune", signing.public_key())


def test_methods_that_need_single_uploads_are_refused() -> None:
    refusing = set()
    for name in Method.family:
        for settings_ in ({}, {"variant": "original"}):
            if settings_ and "variant" not in Method.family[name].__dataclass_fields__:
                continue
            method = Method.make(name, **settings_)
            if not method.averages:
                refusing.add((name, *settings_.values()))
                with refused(name, "one by one", "choose another method"):
                    check_method(method)
            else:
                check_method(method)
    assert refusing == {("confree",), ("confree", "original"), ("fedas", "original"), ("fedpac", "original")}
