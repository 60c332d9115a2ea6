"""The process of a command: its end, signals, questions, and switches of the interpreter."""

import atexit
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Literal, NoReturn

from vitrine.cli.exit_codes import FAILED
from vitrine.text import printable

OPEN_FILES = 4096

SWITCH_INTERVAL_SECONDS = 0.0005
"""Interpreter switch interval in seconds. The writer waits for the reader after every round trip; with Python's default
of 5 ms a full load takes a tenth longer."""

COLLECTION_THRESHOLDS = (200_000, 20, 100)
"""Threshold of the garbage collector. Neither imported modules nor the rows of a batch are garbage; with Python's
default of 700 objects, collections take a tenth of a start and a third of a run. A start creates 100,000 objects:
with a lower threshold, a collection would take 14 ms of it."""


def shorten_start_and_exit() -> None:
    """Collect garbage rarely, and not at exit, where a collection takes a fifth of the time of a short command.

    Pydantic would search every installed distribution for plugins of its own.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    atexit.register(gc.freeze)


def completes() -> bool:
    """Whether the script of a shell asks for completions."""
    return "_VITRINE_COMPLETE" in os.environ


def tune_for_rows() -> None:
    """For a process that moves rows in several threads."""
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    gc.set_threshold(*COLLECTION_THRESHOLDS)


def allow_open_files() -> None:
    """For a process with many connections: raise its limit of open files as far as the system allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        more = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))


def stop(text: str, code: int = FAILED, *, lines: bool = False) -> NoReturn:
    """Write the sentence and exit; with `lines`, its line breaks are ours."""
    sys.stderr.write(f"vitrine: {printable(text, lines=lines)}\n")
    sys.exit(code)


def fail_unexpectedly() -> NoReturn:
    """Write the traceback of the current exception, without an effect on the terminal."""
    import traceback

    sys.stderr.write(printable(traceback.format_exc(), lines=True))
    sys.exit(FAILED)


def abandon(text: str = "") -> NoReturn:
    """End the process at once: one of its threads hangs in user code, and Python would wait for that thread."""
    sys.stderr.write(printable(text, lines=True))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(FAILED)


def stop_signals() -> list[int]:
    """Ctrl-C, SIGTERM, and SIGHUP, which a closed terminal sends; not SIGHUP under nohup."""

    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if is_ignored else [signal.SIGHUP])]


def on_stop_signals(request_stop: Callable[[], None]) -> None:
    """Call the function at each of these signals."""

    def handle(number: int, frame: FrameType | None) -> None:
        # in another thread, because this one may hold the lock that setting an event needs
        threading.Thread(target=request_stop).start()

    for number in stop_signals():
        signal.signal(number, handle)


def exit_on_stop_signals() -> None:
    """End like after Ctrl-C at each of these signals: what was started is stopped before the process ends."""

    def handle(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    for number in stop_signals():
        signal.signal(number, handle)


OnInterrupt = Literal["release", "pause"]


class Interrupts:
    """Handlers for Ctrl-C, SIGTERM and SIGHUP, which a closed terminal sends."""

    def __init__(self, request_stop: Callable[[], None], *, first: str, second: str) -> None:
        self._request_stop = request_stop
        self._first = first
        self._second = second
        self.received = False

    def install(self) -> None:
        for number in stop_signals():
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


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is removed; ends the process unless the user agrees, or gave --yes.

    Without a terminal nothing is asked: an answer that a script pipes in was written for another question.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        stop(f"nothing was changed: there is no terminal to ask “{question}”; give --yes to agree")
    import typer  # slow to import: a command must be able to end before

    try:
        agreed = typer.confirm(question)
    except typer.Abort:
        agreed = False
    if not agreed:
        stop("nothing was changed")
