from __future__ import annotations

import threading

from feddrm.serve.telemetry.background_writer import BackgroundWriter


def test_items_are_written_in_order_and_put_returns_false_when_full() -> None:
    written: list[list[int]] = []
    release = threading.Event()

    def write(items: list[int]) -> None:
        release.wait(10)
        written.append(items)

    writer: BackgroundWriter[int] = BackgroundWriter("test", write, capacity=3, flush_seconds=0)
    assert writer.put(0)
    while len(writer._items):  # until the thread has taken it and waits
        pass
    assert [writer.put(i) for i in range(1, 6)] == [True, True, True, False, False]
    release.set()
    writer.close()
    assert written[0] == [0]
    assert [item for items in written for item in items] == [0, 1, 2, 3]


def test_nothing_is_lost_when_many_threads_put() -> None:
    written: list[int] = []
    writer: BackgroundWriter[int] = BackgroundWriter("test", written.extend, capacity=10**6, flush_seconds=0.001)

    def put(start: int) -> None:
        for i in range(start, 40_000, 4):
            assert writer.put(i)

    threads = [threading.Thread(target=put, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    assert sorted(written) == list(range(40_000))


def test_write_gets_an_empty_list_after_an_idle_time() -> None:
    idle = threading.Event()
    writer: BackgroundWriter[int] = BackgroundWriter(
        "test", lambda items: None if items else idle.set(), capacity=1, flush_seconds=0, idle_seconds=0.01
    )
    assert idle.wait(10)
    writer.close()
