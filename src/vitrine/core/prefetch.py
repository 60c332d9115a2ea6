"""Work beside the loop: batches prepared ahead, and calls that a pause or a stop must interrupt."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from vitrine.core.protocols import Phase, Plan, RunControl
from vitrine.core.rows import Batch, Lane, Read

POLL_SECONDS = 0.1
"""How often a wait for a batch is checked for an interruption: a slow query does not delay a pause or a stop."""

Ready = queue.Queue[Batch | BaseException | None]
"""Batches ready for the next stage; an exception ends the stage, None is the end of the rows."""


class Prefetch:
    """Reads in one thread, transforms and encodes in another."""

    def __init__(self, plan: Plan, read: Read, control: RunControl) -> None:
        self._plan = plan
        self._read = read
        self._control = control
        self._stopping = threading.Event()
        self._queues: list[Ready] = []
        self._threads: list[threading.Thread] = []
        self._ready = self._stage("reader", self._batches())
        # binary rows go to the sink unchanged: a second thread would only add cost
        if plan.transforms or read.lane is not Lane.COPY:
            self._ready = self._stage("transformer", self._transform(self._ready))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        while any(thread.is_alive() for thread in self._threads):
            self._plan.source.cancel()
            for ready, thread in zip(self._queues, self._threads, strict=True):
                with contextlib.suppress(queue.Empty):
                    ready.get_nowait()
                thread.join(0.05)

    def __iter__(self) -> Iterator[Batch]:
        """Yields until the source is exhausted; raises what a stage raised, and Stop when the run should end."""
        return self._take(self._ready, self._never_over)

    def _never_over(self) -> bool:
        self._control.check()
        return False

    # -- in threads of their own ------------------------------------------------------------------------------------

    def _stage(self, name: str, work: Iterator[Batch]) -> Ready:
        ready: Ready = queue.Queue(maxsize=1)
        self._queues.append(ready)
        self._threads.append(threading.Thread(target=self._produce, args=(work, ready), name=name, daemon=True))
        return ready

    def _produce(self, work: Iterator[Batch], ready: Ready) -> None:
        try:
            for batch in work:
                ready.put(batch)
                if self._stopping.is_set():
                    return
            ready.put(None)
        except BaseException as exc:  # noqa: BLE001  raised again in the thread that writes
            ready.put(exc)

    def _batches(self) -> Iterator[Batch]:
        if self._plan.reads_user_code:
            self._control.enter(Phase.USER_CODE)
        for batch in self._plan.source.batches(self._read, self._control.throttle):
            yield replace(batch, read=batch.count + len(batch.refused))

    def _transform(self, ready: Ready) -> Iterator[Batch]:
        entered = not self._plan.user_code
        for batch in self._take(ready, self._stopping.is_set):
            if not entered:
                self._control.enter(Phase.USER_CODE)
                entered = True
            yield self._plan.sink.encode(self._apply(batch))

    def _apply(self, batch: Batch) -> Batch:
        for transform in self._plan.transforms:
            batch = transform(batch)
        return batch

    def _take(self, ready: Ready, is_over: Callable[[], bool]) -> Iterator[Batch]:
        while True:
            try:
                item = ready.get(timeout=POLL_SECONDS)
            except queue.Empty:
                if is_over():
                    return
                continue
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item


Result = TypeVar("Result")

CANCEL_SECONDS = 0.5
"""Between two calls of `cancel`: one that arrives between two statements has no effect."""


def interruptible(work: Callable[[], Result], control: RunControl, cancel: Callable[[], None]) -> Result:
    """The result of the work, which is done in another thread; Stop, or LeaseLost, if the run should end.

    Returns only after the work has ended: `cancel` is called until it has.
    """
    found: Future[Result] = Future()

    def do() -> None:
        try:
            found.set_result(work())
        except BaseException as exc:  # noqa: BLE001  raised again in the thread that waits
            found.set_exception(exc)

    worker = threading.Thread(target=do, name="background", daemon=True)
    worker.start()
    try:
        while worker.is_alive():
            worker.join(POLL_SECONDS)
            if worker.is_alive():
                # guarantee: D25
                control.check()
    finally:
        while worker.is_alive():
            cancel()
            worker.join(CANCEL_SECONDS)
    return found.result()
