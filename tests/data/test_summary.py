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


def test_constant_columns_do_not_differ_and_columns_far_from_zero_keep_their_digits() -> None:
    rng = np.random.default_rng(1)
    parts = {}
    for name, size in (("a", 100), ("b", 37), ("c", 1000)):
        columns = [np.full(size, 0.1), np.full(size, 1e6 / 3), np.zeros(size), 1e5 + rng.normal(size=size)]
        parts[name] = (np.column_stack(columns).astype(np.float32), np.arange(size) % 2)
    found = dataset_summary(Federation.from_arrays(parts, test=parts)).column_means
    assert found is not None
    assert (found[:, :3] == 0).all()
    far = [x[:, 3].astype(np.float64) for x, _ in parts.values()]
    pooled = np.concatenate(far)
    expected = [(x.mean() - pooled.mean()) / pooled.std(ddof=1) for x in far]
    np.testing.assert_allclose(found[:, 3], expected, rtol=1e-5)


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
