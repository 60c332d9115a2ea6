"""Work in a process of its own that a test may kill, stop and wake: a fork of this one, so that it begins at once."""

import json
import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.helpers.waiting import wait_until
from vitrine import failpoints
from vitrine.model import Claim
from vitrine.postgres import connect
from vitrine.runner.dispatcher import PipelineDispatcher
from vitrine.runner.executor import PipelineExecutor
from vitrine.settings import Settings
from vitrine.store import pipelines


@dataclass
class Forked:
    """A child process; what its work answers comes through a pipe."""

    pid: int
    answers: int
    code: int | None = None  # None: it has not ended; negative: the signal that killed it

    def ended(self) -> int:
        """The exit code, once it has one; the signal's number below zero if it was killed."""
        return wait_until(self._look, what="the end of the child")[0]

    def stopped(self) -> None:
        """Once it has stopped itself."""
        wait_until(lambda: os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)[0], what="a child that stops")

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def answer(self) -> Any:
        """What the work came to."""
        assert self.ended() == 0
        with os.fdopen(os.dup(self.answers)) as pipe:
            return json.load(pipe)

    def _look(self) -> tuple[int] | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return None if self.code is None else (self.code,)


@contextmanager
def forked(work: Callable[[], Any], points: str = "") -> Generator[Forked]:
    """The work, in a child with these failpoints; nothing is left of it when the block ends."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            failpoints.install(points)
            os.write(writing, json.dumps(work()).encode())
            os._exit(0)
        finally:
            os._exit(70)  # never back into the tests
    os.close(writing)
    child = Forked(pid, reading)
    try:
        yield child
    finally:
        if child.code is None:
            os.kill(pid, signal.SIGKILL)
            child.ended()
        os.close(reading)


def dispatched(settings: Settings, claim: Claim) -> list[str | None]:
    """The claim's run from start to end, here: the code of its error, and the status it left behind."""
    executed, status = PipelineDispatcher(settings, PipelineExecutor(settings, threading.Event())).dispatch(claim)
    return [executed.error.code if executed.error else None, status]


def claimed(settings: Settings, runner: str = "forked") -> Claim:
    """The next claim, through a connection of its own."""
    with connect(settings.store_url, name="tests:claim") as store:
        claim = pipelines.claim_next(store, runner=runner, ttl=settings.lease_ttl)
    assert claim is not None
    return claim
