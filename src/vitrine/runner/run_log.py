"""Keeps the last log lines of a run, and stores them with it."""

import json
import logging
import math
import time
from collections import deque
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from vitrine import logs
from vitrine.errors import VitrineError
from vitrine.flow.rows import Counts
from vitrine.ids import RunId
from vitrine.logs import Redactor
from vitrine.runner.control import Watch
from vitrine.store import run_logs
from vitrine.store.database import Link
from vitrine.store.run_logs import RunLog

log = logging.getLogger(__name__)

MAX_LINES = 200
MAX_BYTES = 64 * 1024
MAX_LINE_BYTES = 4 * 1024
SAVE_SECONDS = 10.0
"""How often the lines of a long run are stored; a short one stores them once, at its end."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_OF_THE_RUN = frozenset({"action", "pipeline", "pipeline_id", "run_id", "attempt"})


class RunLogKeeper(logging.Handler):
    """The last lines about one run, from any thread: at most 200, and 64 KB of JSON. They have no row values."""

    def __init__(self, run_id: RunId, redact: Redactor) -> None:
        super().__init__(logging.INFO)
        self._run_id = run_id
        self._redact = redact
        self._lines: deque[tuple[dict[str, Any], int]] = deque()  # each with its size
        self._size = 0
        self._dropped = 0
        self._saved = 0  # lines that were there at the last save, dropped ones included
        self._saved_at = time.monotonic()

    def __enter__(self) -> Self:
        logging.getLogger(logs.OURS).addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger(logs.OURS).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "run_id", None) != self._run_id:
            return
        try:
            self._keep(self._line(record))
        except Exception:  # noqa: BLE001  best effort: a line that cannot be kept is still written to the log
            self._dropped += 1

    def watching(self, store: Link, watch: Watch | None) -> Watch:
        """An observer of the run's batches that stores the lines from time to time, and passes the counts on."""

        def observe(counts: Counts, expected: int | None) -> None:
            if time.monotonic() - self._saved_at >= SAVE_SECONDS:
                self.save(store)
            if watch is not None:
                watch(counts, expected)

        return observe

    def save(self, store: Link) -> None:
        """Store the lines. Best effort: never fails a run."""
        self._saved_at = time.monotonic()
        self.acquire()
        try:
            lines, dropped = [line for line, _ in self._lines], self._dropped
        finally:
            self.release()
        if len(lines) + dropped == self._saved:
            return
        try:
            run_logs.save(store.connection(), self._run_id, RunLog(lines, dropped))
            self._saved = len(lines) + dropped
        except VitrineError as exc:
            store.drop()
            log.debug("the log of a run was not stored: %s", exc, extra={"action": "run_log_failed"})

    def _keep(self, line: dict[str, Any]) -> None:
        """Called with the handler's lock."""
        size = len(json.dumps(line, ensure_ascii=False).encode())
        self._lines.append((line, size))
        self._size += size
        while len(self._lines) > MAX_LINES or self._size > MAX_BYTES:
            _, removed = self._lines.popleft()
            self._size -= removed
            self._dropped += 1

    def _line(self, record: logging.LogRecord) -> dict[str, Any]:
        fields = {
            name: self._safe(value)
            for name, value in vars(record).items()
            if name not in _STANDARD and name not in _OF_THE_RUN
        }
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = self._safe("\n".join(logs.describe(record.exc_info[1])))
        return {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "action": getattr(record, "action", None),
            "text": self._safe(record.getMessage()),
            "fields": fields,
        }

    def _safe(self, value: object) -> Any:
        """A value that JSON in the store can hold, without secrets."""
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        text = self._redact(str(value)).replace("\0", "").encode("utf-8", "replace").decode()
        return text if len(text) <= MAX_LINE_BYTES else f"{text[:MAX_LINE_BYTES]}…"
