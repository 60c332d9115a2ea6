"""Signals during a command that waits or moves rows: the first asks for an orderly end, the second ends the process."""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Literal

from vitrine.cli import process

OnInterrupt = Literal["release", "pause"]


class Interrupts:
    """Handlers for Ctrl-C, SIGTERM and SIGHUP, which a closed terminal sends."""

    def __init__(self, request_stop: Callable[[], None], *, first: str, second: str) -> None:
        self._request_stop = request_stop
        self._first = first
        self._second = second
        self.received = False

    def install(self) -> None:
        for number in process.stop_signals():
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            _write(f"\nvitrine: {self._second}\n")
            os._exit(128 + number)
        self.received = True
        _write(f"\nvitrine: {self._first}\n")
        # in another thread, because this one may hold the lock that setting an event needs
        threading.Thread(target=self._request_stop, daemon=True).start()


def _write(text: str) -> None:
    # not by sys.stderr: the interrupted code may be in the middle of a write; and a closed terminal takes no text
    with suppress(OSError):
        os.write(2, text.encode())
