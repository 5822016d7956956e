from __future__ import annotations

import threading

from feddrm.serve.telemetry.background_writer import Drain


def test_everything_that_found_room_is_taken_in_order_and_the_rest_refused() -> None:
    taken: list[list[int]] = []
    go = threading.Event()

    def work(items: list[int]) -> None:
        go.wait(10)
        taken.append(items)

    drain: Drain[int] = Drain("test", work, room=3, seconds=0)
    assert drain.put(0)
    while len(drain._items):  # until the thread has it and is held up
        pass
    assert [drain.put(i) for i in range(1, 6)] == [True, True, True, False, False]
    go.set()
    drain.close()
    assert taken[0] == [0]
    assert [item for items in taken for item in items] == [0, 1, 2, 3]


def test_many_that_put_lose_nothing() -> None:
    taken: list[int] = []
    drain: Drain[int] = Drain("test", taken.extend, room=10**6, seconds=0.001)

    def put(start: int) -> None:
        for i in range(start, 40_000, 4):
            assert drain.put(i)

    threads = [threading.Thread(target=put, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drain.close()
    assert sorted(taken) == list(range(40_000))


def test_nothing_to_do_is_said_too() -> None:
    idle = threading.Event()
    drain: Drain[int] = Drain("test", lambda items: None if items else idle.set(), room=1, seconds=0, idle=0.01)
    assert idle.wait(10)
    drain.close()
