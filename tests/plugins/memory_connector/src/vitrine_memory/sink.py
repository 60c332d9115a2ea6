"""The sink: versioned documents by key, and loads that are built aside and shown at once."""

import json
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from vitrine.copytext import text_of, values
from vitrine.errors import ConfigError, DataError, TransientError
from vitrine.flow.jobs import SinkJob, SweepJob
from vitrine.flow.keys import is_within, rank
from vitrine.flow.protocols import LoadState
from vitrine.flow.rows import (
    NOTHING_WRITTEN,
    Batch,
    Column,
    Compare,
    Counts,
    Digest,
    Finding,
    Generation,
    Key,
    KeyRange,
    Kind,
    Lane,
    LoadInfo,
    Position,
    Reject,
    Selection,
    Stamp,
    TargetInfo,
    TextRows,
    Written,
)
from vitrine_memory import MemorySettings, MemorySinkOptions
from vitrine_memory.storage import (
    Document,
    NoSuchTarget,
    Reply,
    Storage,
    StoredTarget,
    VersionConflict,
    chunks,
)

WAIT_SECONDS = 0.05
SWEEP_WAITS = 100

Job = SinkJob[MemorySinkOptions, MemorySettings]
Put = Callable[[Sequence[Document]], Reply]


@dataclass(frozen=True)
class Documents:
    """Rows as they are sent; made ahead of the write by `encode`."""

    documents: tuple[Document, ...]
    repeated: int  # rows left out, because their key comes again

    @property
    def count(self) -> int:
        return len(self.documents)


class MemorySink:
    """A Sink for `mem:name`."""

    def __init__(self, job: Job) -> None:
        if job.settings.path is None:
            raise ConfigError("VITRINE_MEMORY_PATH is not set; give the folder of the documents", code="SETTINGS")
        self.job = job
        self.name = job.target.name
        self.storage = Storage(job.settings.path, self._wait)
        self.cancelled = threading.Event()
        self._described: StoredTarget | None = None  # the target that the run has found, or has created

    def describe(self, columns: Sequence[Column] = ()) -> TargetInfo:
        with translated(self.name):
            self._described = found = self.storage.target(self.name)
        return TargetInfo(
            exists=found is not None,
            key=self.job.definition.key_columns,
            lanes=(Lane.ROWS,),
            columns=found.columns if found else (),
            identity=found.identity if found else None,
            findings=tuple(self._findings(columns, found)),
        )

    def _findings(self, columns: Sequence[Column], found: StoredTarget | None) -> Iterator[Finding]:
        key, names = self.job.definition.key_columns, [column.name for column in columns]
        if not key:
            yield Finding("KEY_MISSING", f"target mem:{self.name} has no key; name key_columns", fatal=True)
        for name in key if columns else ():
            if name not in names:
                yield Finding("SCHEMA_CHANGED", f"the rows lack the key column '{name}'", name, fatal=True)
        for column in columns:
            if column.kind is Kind.OTHER:
                text = f"column '{column.name}' has type {column.type}, which documents do not store; cast it to text"
                yield Finding("TYPE", text, column.name, fatal=True)
        if found is not None and self.job.definition.options.on_schema_change == "fail":
            known = {column.name for column in found.columns}
            for name in (name for name in names if name not in known):
                text = f"target mem:{self.name} has no field '{name}'; set options.on_schema_change: add_columns"
                yield Finding("TARGET_SCHEMA", text, name, fatal=True)

    def encode(self, batch: Batch) -> Batch:
        documents = [Document(self._key(row), row) for row in _rows(batch)]
        newest = self._newest(documents, batch.columns)
        return replace(batch, payload=Documents(tuple(newest.values()), len(documents) - len(newest)))

    def _key(self, row: dict[str, str | None]) -> Key:
        key = tuple(row[name] for name in self.job.definition.key_columns)
        if None in key:
            raise DataError("the source returns rows with NULL in the key; a key must be complete", code="NULL_KEY")
        return tuple(text or "" for text in key)

    def _newest(self, documents: Sequence[Document], columns: Sequence[Column]) -> dict[Key, Document]:
        """Of rows with one key the last; DataError where that is not what the pipeline asks for."""
        cursor = next((one for one in columns if one.name == self.job.definition.incremental_key), None)
        newest: dict[Key, Document] = {}
        for one in documents:
            if one.key in newest and self.job.definition.options.on_duplicate_key == "fail":
                raise DataError(
                    f"the source returns the same key ({'/'.join(one.key)}) more than once; to keep the last of them,"
                    " set options.on_duplicate_key: last",
                    code="DUPLICATE_KEY",
                )
            if one.key not in newest or not _is_newer(newest[one.key], one, cursor):
                newest[one.key] = one
        return newest

    def adopt(self, target: StoredTarget) -> None:
        """The target as a load has created or replaced it: the units that follow write to it."""
        self._described = target

    # -- units ----------------------------------------------------------------------------------------------------

    @contextmanager
    def unit(self, stamp: Stamp) -> "Generator[MemoryUnit]":
        self.cancelled.clear()
        with translated(self.name):
            yield MemoryUnit(self, lambda batch: self._target(batch.columns), self._put(stamp))

    def _target(self, columns: Sequence[Column]) -> StoredTarget:
        """The target of this run. One that vanished is not created again: its older rows would be missing."""
        if self._described is None:
            self._described = self.storage.create(self.name, columns)
        known = {column.name for column in self._described.columns}
        if any(column.name not in known for column in columns):
            self._described = self.storage.create(self.name, columns)
        return self._described

    def _put(self, stamp: Stamp) -> Put:
        def put(documents: Sequence[Document]) -> Reply:
            if self._described is None:
                return Reply(0, 0, ())
            identity = self._described.identity
            return self.storage.put(self.name, identity, documents, stamp.version, stamp.sequence)

        return put

    def send(self, documents: Sequence[Document], put: Put) -> list[Reply]:
        """In requests of a limited size, none of which starts after the lease has ended."""
        replies: list[Reply] = []
        for chunk in chunks(documents, self.job.options.memory_request_rows):
            self.check_request()
            try:
                replies.append(put(chunk))
            except VersionConflict as exc:
                raise self.conflict() from exc
        return replies

    def check_request(self) -> None:
        self.job.lease.seconds_left()
        if self.cancelled.is_set():
            raise TransientError(f"target mem:{self.name}: the request was cancelled")

    def conflict(self) -> ConfigError:
        """A refused version is never a success: either the lease is lost, or versions have gone backwards."""
        self.job.lease.seconds_left()
        return ConfigError(
            f"target mem:{self.name} holds rows with a higher version than this run writes; another installation"
            " writes to it, or the store was restored: write to another target",
            code="VERSION_REGRESSION",
        )

    def _wait(self) -> None:
        self.check_request()
        self.job.lease.wait(WAIT_SECONDS)

    # -- loads and reading ----------------------------------------------------------------------------------------

    def load(self, generation: Generation) -> "MemoryLoad":
        with translated(self.name):
            return MemoryLoad(self, generation)

    def digest(self, compare: Compare, rows: Iterator[Batch] | None = None) -> Sequence[Digest] | None:
        return None

    def fetch(self, only: Selection, columns: Sequence[Column]) -> Iterator[Batch]:
        with translated(self.name):
            found = self.storage.target(self.name)
            documents = self.storage.documents(self.name)
        types = {column.name: column for column in (found.columns if found else ())}
        key = [types[name] for name in self.job.definition.key_columns if name in types]
        selected = [one for one in documents if _is_selected(one.key, only, key)]
        selected.sort(key=lambda one: rank(one.key, key))
        if selected:
            lines = [_line(one.document or {}, columns) for one in selected]
            yield Batch(TextRows("".join(lines).encode(), len(lines)), tuple(columns), None, Position())

    def cancel(self) -> None:
        self.cancelled.set()

    def close(self) -> None:
        """Requests keep nothing open."""

    @classmethod
    def sweep(cls, job: SweepJob[MemorySettings]) -> list[str]:
        if job.settings.path is None:
            return []
        attempts = iter(range(SWEEP_WAITS))

        def wait() -> None:
            if next(attempts, None) is None:
                raise sqlite3.OperationalError("another session holds the documents")

        storage = Storage(job.settings.path, wait)
        with translated("*"):
            found = storage.loads(job.installation)
            in_use = {(str(pipeline), number) for pipeline, number in (job.open_loads() if found else ())}
            leftover = [collection for collection, pipeline, number in found if (pipeline, number) not in in_use]
            for collection in leftover:
                storage.discard(collection)
        return leftover


class MemoryUnit:
    """Some requests. The target acknowledges each, so the unit has no transaction to join."""

    transaction = None

    def __init__(self, sink: MemorySink, prepare: Callable[[Batch], StoredTarget | None], put: Put) -> None:
        self.result: Written = NOTHING_WRITTEN
        self._sink = sink
        self._prepare = prepare
        self._put = put

    def write(self, batch: Batch) -> None:
        target = self._prepare(batch)
        payload = batch.payload if isinstance(batch.payload, Documents) else self._sink.encode(batch).payload
        assert isinstance(payload, Documents)
        replies = self._sink.send(payload.documents, self._put)
        refused = {key: field for reply in replies for key, field in reply.refused}
        rejects = tuple(self._reject(one, refused[one.key]) for one in payload.documents if one.key in refused)
        written = ["/".join(one.key) for one in payload.documents if one.key not in refused]
        self.result = Written(
            self._counts(len(written), len(rejects), payload.repeated),
            rejects,
            healed=tuple(set(written).intersection(self._sink.job.open_rejects)),
            identity=target.identity if target else None,
        )

    def delete(self, keys: Sequence[Key]) -> None:
        replies = self._sink.send([Document(key, None) for key in keys], self._put)
        deleted = sum(reply.existed for reply in replies)
        self.result = replace(self.result, counts=self.result.counts + Counts(deleted=deleted))

    def _counts(self, written: int, rejected: int, repeated: int) -> Counts:
        return Counts(written=written, rejected=rejected, repeated=repeated)

    def _reject(self, one: Document, field: str) -> Reject:
        """The policy of the pipeline decides whether the row may be left out."""
        reason = f"field '{field}' breaks a rule of the target"
        reject = Reject("/".join(one.key), field, "RULE", reason, json.dumps(one.document))
        self._sink.job.rejects.judge(reject)
        return reject


class StagedUnit(MemoryUnit):
    """The same for a load: nothing of it is visible before it is published."""

    def _counts(self, written: int, rejected: int, repeated: int) -> Counts:
        return Counts(staged=written, rejected=rejected, repeated=repeated)


class MemoryLoad:
    """One generation, in a collection of its own."""

    def __init__(self, sink: MemorySink, generation: Generation) -> None:
        self._sink = sink
        self._storage = sink.storage
        run = sink.job.run
        self._load = (str(run.pipeline_id), generation.number)
        self._collection = f"{run.pipeline_id}/{generation.number}"
        found = self._storage.target(sink.name)
        self._seen = found.collection if found else None  # what a publish replaces, and nothing else
        self._columns = found.columns if found else ()
        if self._seen == self._collection:
            self.state = LoadState.PUBLISHED
        else:
            self.state = LoadState.STAGED if self._storage.is_staged(self._collection) else LoadState.ABSENT

    @contextmanager
    def unit(self, stamp: Stamp) -> Generator[StagedUnit]:
        self._sink.cancelled.clear()
        with translated(self._sink.name):
            self._begin(stamp)
            yield StagedUnit(self._sink, self._note_columns, self._put(stamp))

    def _begin(self, stamp: Stamp) -> None:
        self._sink.check_request()
        installation = self._sink.job.run.installation
        try:
            self._storage.begin(self._collection, self._load, installation, stamp.version, stamp.sequence)
        except VersionConflict as exc:
            raise self._sink.conflict() from exc
        self.state = LoadState.STAGED

    def _note_columns(self, batch: Batch) -> None:
        self._columns = batch.columns

    def _put(self, stamp: Stamp) -> Put:
        return lambda documents: self._storage.stage(
            self._sink.name, self._collection, documents, stamp.version, stamp.sequence
        )

    @contextmanager
    def publish(self, stamp: Stamp, info: LoadInfo) -> "Generator[Publication]":
        def check(staged: int, before: int, vanished: int) -> None:
            if staged < info.rows and not info.repeats:
                raise DataError(
                    f"{staged} documents are staged, but {info.rows} were loaded: the key is not unique, or another"
                    " session changed them; run again",
                    code="STAGING_MISMATCH",
                )
            if info.max_delete_ratio is not None and vanished > before * info.max_delete_ratio:
                raise DataError(
                    f"the source lacks {vanished} of the {before} rows of mem:{self._sink.name}, more than"
                    f" max_delete_ratio {info.max_delete_ratio:g} allows; if that is right, run once with allow_shrink",
                    code="SHRINK_GUARD",
                )

        with translated(self._sink.name):
            self._sink.check_request()
            try:
                shown, reply = self._storage.publish(
                    self._sink.name, self._collection, self._seen, self._columns, check
                )
            except VersionConflict as exc:
                raise self._sink.conflict() from exc
            self.state = LoadState.PUBLISHED
            self._sink.adopt(shown)
            yield Publication(Written(Counts(written=reply.written, deleted=reply.existed), identity=shown.identity))

    def discard(self) -> None:
        with translated(self._sink.name):
            self._storage.discard(self._collection)


@dataclass(frozen=True)
class Publication:
    """The load is visible: a publish has done its work when it opens."""

    result: Written
    transaction: None = None


@contextmanager
def translated(name: str) -> Generator[None]:
    """Errors of the storage in the groups of Vitrine."""
    try:
        yield
    except NoSuchTarget as exc:
        raise ConfigError(
            f"target mem:{name} was removed while the run was under way; reset the state to read everything again",
            code="TARGET_SCHEMA",
        ) from exc
    except sqlite3.Error as exc:
        raise TransientError(f"target mem:{name}: {exc}") from exc


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
