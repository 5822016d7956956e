"""Threads: results keep their order, workers use one thread each, and settings of torch are restored."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from feddrm.threads import (
    FEW_SAMPLES,
    SMALL_PRODUCT,
    Map,
    intra_op_threads,
    router_kernels,
    thread_map,
    without_onednn_if_small,
)


def test_results_keep_the_order_of_the_items() -> None:
    def slow_first(i: int) -> int:
        time.sleep(0.05 if i == 0 else 0)
        return 10 * i

    for workers in (1, 3):
        with thread_map(workers) as parallel:
            assert list(parallel(slow_first, range(5))) == [0, 10, 20, 30, 40]


def test_one_worker_runs_in_the_calling_thread() -> None:
    with thread_map(1) as parallel:
        assert list(parallel(lambda _: threading.get_ident(), range(2))) == [threading.get_ident()] * 2


def test_two_workers_work_at_once() -> None:
    barrier = threading.Barrier(2, timeout=10)  # breaks unless both threads arrive
    with thread_map(2) as parallel:
        assert sorted(parallel(lambda _: barrier.wait(), range(2))) == [0, 1]


def test_the_error_of_a_worker_is_raised() -> None:
    with pytest.raises(ZeroDivisionError), thread_map(2) as parallel:
        list(parallel(lambda i: 1 // i, range(3)))


def test_an_interruption_does_not_wait_for_work_that_runs() -> None:
    left, seen = threading.Event(), []

    def interrupted(work: Map) -> None:
        work(lambda _: seen.append(left.wait(10)), [0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), thread_map(2) as parallel:
        interrupted(parallel)
    left.set()
    while not seen:
        time.sleep(0.01)
    assert seen == [True]


def test_the_number_of_threads_is_restored_after_an_error() -> None:
    before = torch.get_num_threads()
    with intra_op_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(KeyError), intra_op_threads(before + 1):
        raise KeyError
    assert torch.get_num_threads() == before


def test_onednn_is_off_for_small_products_and_restored() -> None:
    assert torch.backends.mkldnn.enabled
    with without_onednn_if_small(SMALL_PRODUCT):
        assert not torch.backends.mkldnn.enabled
        with without_onednn_if_small(0):  # nested: the inner block must not switch it on
            pass
        assert not torch.backends.mkldnn.enabled
    assert torch.backends.mkldnn.enabled
    with without_onednn_if_small(SMALL_PRODUCT + 1):
        assert torch.backends.mkldnn.enabled
    with pytest.raises(KeyError), without_onednn_if_small(0):
        raise KeyError
    assert torch.backends.mkldnn.enabled


@pytest.mark.parametrize("first", [0, SMALL_PRODUCT + 1])
def test_no_thread_turns_the_onednn_switch_under_another_and_none_waits(first: float) -> None:
    """Else the last bits of a training would depend on what other threads do meanwhile."""
    onednn, entered, leave = torch.backends.mkldnn, threading.Event(), threading.Event()
    usual = first > SMALL_PRODUCT
    seen: list[bool] = []

    def compute() -> None:
        with without_onednn_if_small(first):
            entered.set()
            leave.wait(10)
            seen.append(onednn.enabled)

    thread = threading.Thread(target=compute)
    thread.start()
    entered.wait(10)
    for largest in (0, SMALL_PRODUCT + 1):
        with without_onednn_if_small(largest):
            assert onednn.enabled == usual
        assert onednn.enabled == usual
    with without_onednn_if_small(0):
        leave.set()
        thread.join(10)
        assert onednn.enabled == usual  # as it stood when this block began
    assert seen == [usual]
    assert onednn.enabled


def test_blocks_within_blocks_of_one_thread_restore_the_onednn_switch() -> None:
    onednn = torch.backends.mkldnn
    with without_onednn_if_small(SMALL_PRODUCT + 1):
        with without_onednn_if_small(0):
            with without_onednn_if_small(SMALL_PRODUCT + 1):
                assert not onednn.enabled
            assert not onednn.enabled
        assert onednn.enabled
    assert onednn.enabled


@pytest.mark.parametrize(("samples", "threads"), [(10, 1), (FEW_SAMPLES - 1, 1), (FEW_SAMPLES, 2)])
def test_a_fit_on_few_samples_uses_one_thread_and_no_onednn(
    samples: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True, raising=False)
    with intra_op_threads(2), router_kernels(samples):
        assert torch.get_num_threads() == threads
        assert torch.backends.mkldnn.enabled == (threads == 2)
