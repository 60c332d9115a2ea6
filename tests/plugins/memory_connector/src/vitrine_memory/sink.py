"""The sink: versioned documents by key."""

import sqlite3
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from vitrine.core import row_checks
from vitrine.core.copytext import text_of, values
from vitrine.core.keys import is_within, rank
from vitrine.core.rows import (
    Batch,
    Column,
    Compare,
    Digest,
    Finding,
    Generation,
    Key,
    KeyRange,
    Kind,
    Lane,
    Position,
    Selection,
    Stamp,
    TargetInfo,
    TextRows,
)
from vitrine.definition.context import SweepJob
from vitrine.errors import ConfigError, DataError
from vitrine_memory import MemorySettings
from vitrine_memory.load import MemoryLoad
from vitrine_memory.requests import WAIT_SECONDS, Job, Requests, translated
from vitrine_memory.storage import Document, Reply, Storage, StoredTarget
from vitrine_memory.unit import Documents, MemoryUnit

SWEEP_SECONDS = 10.0
"""How long a sweep waits for the sessions of others."""


class MemorySink:
    """A Sink for `mem:name`."""

    lanes = (Lane.ROWS,)

    def __init__(self, job: Job) -> None:
        if job.settings.path is None:
            raise ConfigError("VITRINE_MEMORY_PATH is not set; give the folder of the documents", code="SETTINGS")
        self._definition = job.definition
        self._target = job.target
        self._requests = Requests(job, job.settings.path)
        self._storage = self._requests.storage
        self._found: StoredTarget | None = None  # the target of this run: found, or created by it

    def describe(self, columns: Sequence[Column] = ()) -> TargetInfo:
        with self._requests.opened():
            self._found = found = self._storage.target(self._target.name)
        return TargetInfo(
            exists=found is not None,
            key=self._definition.key_columns,
            lanes=self.lanes,
            columns=found.columns if found else (),
            identity=found.identity if found else None,
            findings=tuple(self._findings(columns, found)),
            checks=frozenset({"not_null", "accepted_values", "range", "row_count"}),
        )

    def encode(self, batch: Batch) -> Batch:
        documents = [Document(self._key(row), row) for row in _rows(batch)]
        newest = self._newest(documents, batch.columns)
        return replace(batch, payload=Documents(tuple(newest.values()), len(documents) - len(newest)))

    @contextmanager
    def unit(self, stamp: Stamp) -> Generator[MemoryUnit]:
        def put(documents: Sequence[Document]) -> Reply:
            if self._found is None:
                return Reply(0, 0, ())  # nothing can be deleted from a target that does not exist
            identity = self._found.identity
            return self._storage.put(self._target.name, identity, documents, stamp.version, stamp.sequence)

        with self._requests.opened():
            unit = MemoryUnit(self._requests, self._prepare, put)
            yield unit
            unit.finish()

    def load(self, generation: Generation) -> MemoryLoad:
        with self._requests.opened():
            return MemoryLoad(self._requests, generation, self._adopt)

    def digest(self, compare: Compare, rows: Iterator[Batch] | None = None) -> Sequence[Digest] | None:
        return None

    def fetch(self, only: Selection, columns: Sequence[Column]) -> Iterator[Batch]:
        with self._requests.opened():
            found = self._storage.target(self._target.name)
            documents = self._storage.documents(self._target.name)
        types = {column.name: column for column in (found.columns if found else ())}
        key = [types[name] for name in self._definition.key_columns if name in types]
        selected = [one for one in documents if _is_selected(one.key, only, key)]
        selected.sort(key=lambda one: rank(one.key, key))
        if selected:
            lines = [_line(one.document or {}, columns) for one in selected]
            yield Batch(TextRows("".join(lines).encode(), len(lines)), tuple(columns), None, Position())

    def cancel(self) -> None:
        self._requests.cancel()

    def close(self) -> None:
        """Requests keep nothing open."""

    @classmethod
    def sweep(cls, job: SweepJob[MemorySettings]) -> list[str]:
        if job.settings.path is None:
            return []
        until = time.monotonic() + SWEEP_SECONDS

        def wait() -> None:
            if time.monotonic() > until:
                raise sqlite3.OperationalError("another session holds the documents")
            time.sleep(WAIT_SECONDS)

        storage = Storage(job.settings.path, wait)
        with translated("mem:*"):
            found = storage.loads(job.installation)
            in_use = {(str(pipeline), number) for pipeline, number in (job.open_loads() if found else ())}
            leftover = [collection for collection, pipeline, number in found if (pipeline, number) not in in_use]
            for collection in leftover:
                storage.discard(collection)
        return leftover

    # -- the target -----------------------------------------------------------------------------------------------

    def _findings(self, columns: Sequence[Column], found: StoredTarget | None) -> Iterator[Finding]:
        key, names = self._definition.key_columns, [column.name for column in columns]
        if not key:
            yield Finding("KEY_MISSING", f"target {self._target} has no key; name key_columns", fatal=True)
        for name in key if columns else ():
            if name not in names:
                yield Finding("SCHEMA_CHANGED", f"the rows lack the key column '{name}'", name, fatal=True)
        for column in columns:
            if column.kind is Kind.OTHER:
                text = f"column '{column.name}' has type {column.type}, which documents do not store; cast it to text"
                yield Finding("TYPE", text, column.name, fatal=True)
        types = {column.name: column.type for column in columns}
        for check in self._definition.checks if columns else ():
            if reason := row_checks.unfit_reason(check, types, str(self._target)):
                yield Finding(row_checks.CHECK_COLUMN, reason, fatal=True)
        if found is not None and self._definition.options.on_schema_change == "fail":
            known = {column.name for column in found.columns}
            for name in (name for name in names if name not in known):
                text = f"target {self._target} has no field '{name}'; set options.on_schema_change: add_columns"
                yield Finding("TARGET_SCHEMA", text, name, fatal=True)

    def _prepare(self, batch: Batch) -> str:
        """The identity of the target. One that vanished is not created again: its older rows would be missing."""
        known = {column.name for column in self._found.columns} if self._found else set[str]()
        if self._found is None or any(column.name not in known for column in batch.columns):
            self._found = self._storage.create(self._target.name, batch.columns)
        return self._found.identity

    def _adopt(self, target: StoredTarget) -> None:
        """A load has created or replaced the target: the units that follow write to it."""
        self._found = target

    # -- keys -----------------------------------------------------------------------------------------------------

    def _key(self, row: dict[str, str | None]) -> Key:
        key = tuple(row[name] for name in self._definition.key_columns)
        if None in key:
            raise DataError("the source returns rows with NULL in the key; a key must be complete", code="NULL_KEY")
        return tuple(text or "" for text in key)

    def _newest(self, documents: Sequence[Document], columns: Sequence[Column]) -> dict[Key, Document]:
        """Of rows with one key the last; DataError where that is not what the pipeline asks for."""
        cursor = next((one for one in columns if one.name == self._definition.incremental_key), None)
        newest: dict[Key, Document] = {}
        for one in documents:
            if one.key in newest and self._definition.options.on_duplicate_key == "fail":
                raise DataError(
                    f"the source returns the same key ({'/'.join(one.key)}) more than once; to keep the last of them,"
                    " set options.on_duplicate_key: last",
                    code="DUPLICATE_KEY",
                )
            if one.key not in newest or not _is_newer(newest[one.key], one, cursor):
                newest[one.key] = one
        return newest


def _rows(batch: Batch) -> Iterator[dict[str, str | None]]:
    """The rows in canonical text, which is exact for every type."""
    names = [column.name for column in batch.columns]
    for line in bytes(text_of(batch)).decode().split("\n")[:-1]:
        fields = (None if field == values.NULL else values.unescape(field) for field in line.split("\t"))
        yield dict(zip(names, fields, strict=True))


def _line(row: dict[str, str | None], columns: Sequence[Column]) -> str:
    texts = (row.get(column.name) for column in columns)
    return "\t".join(values.NULL if text is None else values.escape(text) for text in texts) + "\n"


def _is_selected(key: Key, only: Selection, columns: Sequence[Column]) -> bool:
    return is_within(key, only, columns) if isinstance(only, KeyRange) else key in only


def _is_newer(one: Document, other: Document, cursor: Column | None) -> bool:
    """Whether a row is newer than one that was read after it."""
    if cursor is None or one.document is None or other.document is None:
        return False
    ours, theirs = one.document[cursor.name], other.document[cursor.name]
    return ours is not None and theirs is not None and rank((ours,), (cursor,)) > rank((theirs,), (cursor,))
