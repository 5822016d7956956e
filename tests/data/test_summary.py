from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from feddrm.data import Federation
from feddrm.data.summary import dataset_summary
from feddrm.io.dataset_summary import DatasetSummary


@pytest.fixture(scope="module")
def rows() -> Federation:
    rng = np.random.default_rng(0)
    return Federation.from_arrays({n: (rng.normal(i, 2, (30, 4)), np.arange(30) % 3) for i, n in enumerate("ab")})


def test_tables_are_summarised_by_their_column_means(rows: Federation, tmp_path: Path) -> None:
    dataset_summary(rows).write(tmp_path)
    summary = DatasetSummary.read(tmp_path)
    assert summary.gallery is None
    assert summary.column_means is not None
    pooled = torch.cat([c.train.x for c in rows.clients])
    expected = (rows.clients[1].train.x.mean(0) - pooled.mean(0)) / pooled.std(0)
    torch.testing.assert_close(torch.from_numpy(summary.column_means[1]), expected)


def test_a_gallery_of_own_samples_is_filled_up_with_white() -> None:
    pixels = np.zeros((6, 5, 5, 3), dtype=np.uint8)
    fed = Federation.from_arrays({n: (pixels, np.arange(6) % 2) for n in ("oslo", "lima")})
    summary = dataset_summary(fed)
    assert summary.gallery is not None
    assert summary.gallery.shape == (2, 8, 3, 5, 5)
    held = len(fed.clients[0].test)
    assert (summary.gallery[0, :held] == 0).all()
    assert (summary.gallery[0, held:] == 255).all()
    assert not summary.same_samples
