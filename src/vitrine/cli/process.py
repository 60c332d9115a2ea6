"""The process of a command: exit codes, signals, and switches of the interpreter."""

import atexit
import gc
import os
import sys
from collections.abc import Callable
from typing import NoReturn

FAILED, DIFFERENT, PAUSED, HELD, INTERRUPTED = 1, 2, 3, 4, 130

SWITCH_INTERVAL_SECONDS = 0.0005
"""How long a thread keeps the interpreter while others wait. The writer waits for the reader after every round trip;
with Python's default of 5 ms a full load takes a tenth longer."""

COLLECTION_THRESHOLDS = (50_000, 20, 100)
"""When Python searches for reference cycles. A batch has thousands of rows and no cycles; with Python's default of 700
objects the searches take a third of the time."""


def tune_for_rows() -> None:
    """Set the interpreter up for a process that moves rows."""
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    gc.set_threshold(*COLLECTION_THRESHOLDS)


def skip_collection_at_exit() -> None:
    """At exit Python searches all modules for cycles, which takes a fifth of the time of a short command."""
    atexit.register(gc.freeze)


def stop(text: str, code: int = FAILED) -> NoReturn:
    sys.stderr.write(f"vitrine: {text}\n")
    sys.exit(code)


def abandon(text: str = "") -> NoReturn:
    """End the process at once: one of its threads hangs in user code, and Python would wait for that thread."""
    sys.stderr.write(text)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(FAILED)


def on_stop_signals(request_stop: Callable[[], None]) -> None:
    import signal
    import threading
    from types import FrameType

    def handle(number: int, frame: FrameType | None) -> None:
        # in another thread, because this one may hold the lock that setting an event needs
        threading.Thread(target=request_stop).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
