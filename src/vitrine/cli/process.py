"""The process of a command: exit codes, signals, and switches of the interpreter."""

import atexit
import gc
import os
import sys
from collections.abc import Callable
from typing import NoReturn

FAILED, DIFFERENT, PAUSED, HELD, INTERRUPTED = 1, 2, 3, 4, 130

SWITCH_INTERVAL_SECONDS = 0.0005
"""Interpreter switch interval in seconds. The writer waits for the reader after every round trip; with Python's default
of 5 ms a full load takes a tenth longer."""

COLLECTION_THRESHOLDS = (200_000, 20, 100)
"""Threshold of the garbage collector. Neither imported modules nor the rows of a batch are garbage; with Python's
default of 700 objects, collections take a tenth of a start and a third of a run. A start creates 100,000 objects:
with a lower threshold, a collection would take 14 ms of it."""


def shorten_start_and_exit() -> None:
    """Collect garbage rarely, and not at exit, where a collection takes a fifth of the time of a short command."""
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    atexit.register(gc.freeze)


def tune_for_rows() -> None:
    """For a process that moves rows in several threads."""
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    gc.set_threshold(*COLLECTION_THRESHOLDS)


def stop(text: str, code: int = FAILED) -> NoReturn:
    sys.stderr.write(f"vitrine: {text}\n")
    sys.exit(code)


def abandon(text: str = "") -> NoReturn:
    """End the process at once: one of its threads hangs in user code, and Python would wait for that thread."""
    sys.stderr.write(text)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(FAILED)


def on_stop_signals(request_stop: Callable[[], None], *more: int) -> None:
    """Call the function at SIGTERM, SIGINT and the other signals."""
    import signal
    import threading
    from types import FrameType

    def handle(number: int, frame: FrameType | None) -> None:
        # in another thread, because this one may hold the lock that setting an event needs
        threading.Thread(target=request_stop).start()

    for number in (signal.SIGTERM, signal.SIGINT, *more):
        signal.signal(number, handle)
