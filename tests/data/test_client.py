"""A client: its samples on a device, and the names that a client may have."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddrm.data.client import Client, Split, check_client_names
from refusal import refused


def split(*labels: int) -> Split:
    return Split(torch.zeros(len(labels), 2), torch.tensor(labels))


def test_a_client_moves_with_every_sample() -> None:
    def devices(client: Client) -> set[str]:
        return {tensor.device.type for part in (client.train, client.test) for tensor in (part.x, part.y)}

    client = Client("oslo", split(0, 1, 1), split(0))
    assert devices(client.to("meta")) == {"meta"}
    assert devices(client) == {"cpu"}


def test_a_split_is_printed_without_its_tensors() -> None:
    assert repr(Split(torch.zeros(5, 3, 8, 9, dtype=torch.uint8), torch.zeros(5))) == "Split(5 samples of 3x8x9)"


def test_too_few_clients_are_refused() -> None:
    for names in ((), ("oslo",)):
        with refused("toy", f"at least two clients, got {len(names)}", "add another"):
            check_client_names("toy", names)


@pytest.mark.parametrize("name", ["", " ", ".", "..", "a/b", "a\\b", "a\0b", "a\nb", "a\rb", "a\x1bb"])
def test_names_that_cannot_name_a_folder_are_refused(name: str) -> None:
    with refused("toy", repr(name), "letters, digits"):
        check_client_names("toy", ["oslo", name])


@pytest.mark.parametrize("name", ["lima,pune", ",", "Lima, Peru"])
def test_names_with_a_comma_are_refused(name: str) -> None:
    """A comma separates the clients in queries (without=lima,pune) and in the audit log."""
    with refused("toy", repr(name), "has a comma", "'-' or '_'"):
        check_client_names("toy", ["oslo", name])


def test_names_too_long_for_a_folder_are_refused() -> None:
    check_client_names("toy", ["oslo", "ø" * 100])
    with refused("toy", "'øøøøøøøøøøøøøøøøøøøø...' has 202 bytes", "at most 200"):
        check_client_names("toy", ["oslo", "ø" * 101])


@pytest.mark.parametrize("other", ["oslo", "OSLO", "Oslo"])
def test_names_that_differ_only_in_case_are_refused(other: str) -> None:
    with refused(f"duplicate client name '{other}'", "also 'oslo'", "rename"):
        check_client_names("toy", ["oslo", other])


def test_names_in_two_unicode_forms_are_refused() -> None:
    with refused("duplicate client name"):
        check_client_names("toy", ["k\u00f6ln", "ko\u0308ln"])


@given(st.lists(st.from_regex(r"[a-z0-9_-]{1,12}", fullmatch=True), min_size=2, unique=True))
def test_ordinary_names_are_accepted(names: list[str]) -> None:
    check_client_names("toy", names)
