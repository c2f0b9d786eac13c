"""What long jobs need of the operating system: the cores they may use, and an end that is asked for and not forced."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def usable_cores() -> int:
    """Cores that this process may run on. OMP_NUM_THREADS has no say in it, unlike in `nproc`."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def stop_flag() -> Iterator[threading.Event]:
    """Set by SIGINT or SIGTERM. The handlers are put back at the end; outside the main thread nothing is caught."""
    stop = threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
