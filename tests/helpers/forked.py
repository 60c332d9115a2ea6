"""Work in a child process that a test can kill, freeze and wake; a fork, because it starts at once."""

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
from vitrine.definition.pipeline import Claim
from vitrine.postgres import connect
from vitrine.runner.run import PipelineDispatcher, PipelineExecutor
from vitrine.settings import Settings
from vitrine.store import queue


@dataclass
class Forked:
    """A child process; the result of its work arrives through a pipe."""

    pid: int
    answers: int
    code: int | None = None  # None: still running; negative: the signal that killed it

    def ended(self) -> int:
        """Wait for the end; returns the exit code, or the negative signal number if the child was killed."""
        return wait_until(self._poll, what="the end of the child")[0]

    def stopped(self) -> None:
        """Wait until the child has stopped itself."""
        wait_until(lambda: os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)[0], what="the stop of the child")

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def answer(self) -> Any:
        """Wait for the end; returns the result of the work."""
        assert self.ended() == 0
        with os.fdopen(os.dup(self.answers)) as pipe:
            return json.load(pipe)

    def _poll(self) -> tuple[int] | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return None if self.code is None else (self.code,)


@contextmanager
def forked(work: Callable[[], Any], points: str = "") -> Generator[Forked]:
    """Runs the work in a child with these failpoints; the child is killed when the block ends."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            failpoints.install(points)
            os.write(writing, json.dumps(work()).encode())
            os._exit(0)
        finally:
            os._exit(70)  # the child must never continue with the tests
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
    """Runs the claim in this process; returns its error code and the status of the pipeline afterwards."""
    executed, status = PipelineDispatcher(settings, PipelineExecutor(settings, threading.Event())).dispatch(claim)
    return [executed.error.code if executed.error else None, status]


def claimed(settings: Settings, runner: str = "forked") -> Claim:
    """Claims the next pipeline, through a separate connection."""
    with connect(settings.store_url, name="tests:claim") as store:
        claim = queue.claim_next(store, runner=runner, ttl=settings.lease_ttl)
    assert claim is not None
    return claim
