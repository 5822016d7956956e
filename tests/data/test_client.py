"""A client: its samples on a device, and the names that a client may have."""

from __future__ import annotations

import torch

from feddrm.data.client import Client, Split


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
