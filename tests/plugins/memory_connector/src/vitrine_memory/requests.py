"""Requests to the documents under the lease of a run, and their errors in the groups of Vitrine."""

import sqlite3
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from vitrine.core import row_checks
from vitrine.core.checks import BaseCheck, Results
from vitrine.definition.context import SinkJob
from vitrine.errors import ConfigError, TransientError
from vitrine_memory import MemorySettings, MemorySinkOptions
from vitrine_memory.storage import Document, NoSuchTarget, Reply, Storage, VersionConflict

WAIT_SECONDS = 0.05

Job = SinkJob[MemorySinkOptions, MemorySettings]
Put = Callable[[Sequence[Document]], Reply]


class Requests:
    """What all requests of a run share. None starts after the lease has ended, or outlasts it."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job = job
        self.name = job.target.name
        self.storage = Storage(folder, self._wait)
        self._cancelled = threading.Event()

    @contextmanager
    def opened(self) -> Generator[None]:
        """Several requests, one after the other."""
        self._cancelled.clear()
        with translated(str(self.job.target)):
            try:
                yield
            except VersionConflict as exc:
                raise self._conflict() from exc

    def check(self) -> None:
        """Before each request."""
        self.job.lease.seconds_left()
        if self._cancelled.is_set():
            raise TransientError(f"target {self.job.target}: the request was cancelled")

    def results(
        self, checks: Sequence[BaseCheck], rows: Sequence[dict[str, str | None]], types: dict[str, str]
    ) -> Results:
        """What checks of single rows find in these."""
        row_checks.refuse_unfit(checks, types, str(self.job.target))
        key, show_keys = self.job.definition.key_columns, self.job.run.show_keys
        return row_checks.results_in(checks, rows, types, key, show_keys=show_keys)

    def cancel(self) -> None:
        self._cancelled.set()

    def _wait(self) -> None:
        self.check()
        self.job.lease.wait(WAIT_SECONDS)

    def _conflict(self) -> ConfigError:
        """A refused version is never a success: either the lease is lost, or versions have gone backwards."""
        self.job.lease.seconds_left()
        return ConfigError(
            f"target {self.job.target} holds rows with a higher version than this run writes; another installation"
            " writes to it, or the store was restored: write to another target",
            code="VERSION_REGRESSION",
        )


@contextmanager
def translated(target: str) -> Generator[None]:
    """Errors of the storage in the groups of Vitrine."""
    try:
        yield
    except NoSuchTarget as exc:
        raise ConfigError(
            f"target {target} was removed while the run was under way; reset the state to read everything again",
            code="TARGET_SCHEMA",
        ) from exc
    except sqlite3.Error as exc:
        raise TransientError(f"target {target}: {exc}") from exc
