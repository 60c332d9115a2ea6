"""Pipelines in memory for the scenarios of vitrine_testing: the real loop and checkpoint, three kinds of target."""

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import pytest

from vitrine.core.loop import run_plan
from vitrine.core.protocols import LoadState, Outcome, Plan
from vitrine.core.rows import (
    NOTHING_WRITTEN,
    Batch,
    Column,
    Compare,
    Counts,
    Digest,
    Generation,
    Key,
    Lane,
    LoadInfo,
    Selection,
    Stamp,
    TargetInfo,
    Written,
)
from vitrine.core.status import PipelineId, RunId, RunOptions
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Claim
from vitrine.errors import LeaseLost, TransientError, VitrineError
from vitrine.store import checkpoint, state
from vitrine.store.checkpoint import StoreCheckpoint
from vitrine.store.database import Link
from vitrine_testing.cases import Texts
from vitrine_testing.control import ScriptedControl
from vitrine_testing.lists import ListSource, ListTable
from vitrine_testing.points import Points
from vitrine_testing.runs import Held, Tested
from vitrine_testing.sinks.actions import texts_of

# -- the store --------------------------------------------------------------------------------------------------------

BLANK: dict[str, Any] = {
    **dict.fromkeys(("cursor", "pending_cursor", "pending_since", "cursor_fingerprint", "generation_cursor")),
    **dict.fromkeys(("generation_position", "generation_fingerprint", "generation_horizon", "target_identity")),
    **dict.fromkeys(("horizon_lag_seconds", "horizon_blocker", "updated_at")),
    "generation": 0,
    "generation_open": False,
    "generation_rows": 0,
    "batch_seq": 0,
    "sink_facts": {},
}


@dataclass
class MemoryTransaction:
    """A transaction on the store: what it did takes effect when it commits."""

    store: "FencedStore"
    changes: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def execute(self, query: Any, params: Any = None, /) -> Any:
        raise NotImplementedError

    def commit(self) -> None:
        for change in self.changes:
            change()
        self.end()

    def end(self) -> None:
        self.changes.clear()
        self.store.saving.discard(id(self))


class FencedStore:
    """The state of one pipeline, and the token of its lease; it answers the named statements of a checkpoint."""

    def __init__(self) -> None:
        self.row = dict(BLANK)
        self.token = 0
        self.saving: set[int] = set()  # transactions that hold the pipeline's row

    def connection(self) -> MemoryTransaction:
        return MemoryTransaction(self)

    def answer(self, transaction: MemoryTransaction, name: str, **given: Any) -> dict[str, Any] | None:
        if name in ("hold_lease", "save_state") and given["token"] != self.token:
            return None
        match name:
            case "hold_lease":
                return {"status": "RUNNING"}
            case "open_state":
                return {**self.row, "generation_age": timedelta(0), "generation_outdated": False}
            case "open_generation":
                return self._open_generation(**given)
            case _:
                return self._save(transaction, given)

    def _open_generation(self, *, fingerprint: str, horizon: str | None, **_: Any) -> dict[str, Any]:
        number, sequence = self.row["generation"] + 1, self.row["batch_seq"] + 1
        cleared = {"generation_cursor": None, "generation_position": None, "generation_rows": 0}
        opened = {"generation": number, "generation_open": True, "batch_seq": sequence}
        opened |= {"generation_fingerprint": fingerprint, "generation_horizon": horizon}
        self.row |= cleared | opened
        return {**self.row, "generation_age": timedelta(0), "generation_outdated": False}

    def _save(self, transaction: MemoryTransaction, given: dict[str, Any]) -> dict[str, Any]:
        answer = {"status": "RUNNING", "reload_version": None, "batch_seq": None}
        if given["batch_seq"] != self.row["batch_seq"]:
            return answer
        names = {"cursor_fingerprint": "cursor_types", "target_identity": "identity", "sink_facts": "facts"}
        saved = {name: given[names.get(name, name)] for name in BLANK if names.get(name, name) in given}
        saved |= {"sink_facts": given["facts"].obj, "batch_seq": self.row["batch_seq"] + 1}
        self.saving.add(id(transaction))
        transaction.changes.append(lambda: self.row.update(saved))
        return {**answer, "batch_seq": saved["batch_seq"]}


def answer_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends, the statements of a StoreCheckpoint are answered by the FencedStore of its connection."""

    def fetch_one(transaction: MemoryTransaction, name: str, /, **given: Any) -> dict[str, Any] | None:
        return transaction.store.answer(transaction, name, **given)

    @contextmanager
    def transaction(opened: MemoryTransaction) -> Generator[None]:
        try:
            yield
            opened.commit()
        finally:
            opened.end()

    monkeypatch.setattr(checkpoint, "fetch_one", fetch_one)
    monkeypatch.setattr(checkpoint, "store_transaction", transaction)
    monkeypatch.setattr(checkpoint, "store_rejects", _store_nothing)
    monkeypatch.setattr(state, "record_generation", _store_nothing)


def _store_nothing(*arguments: Any) -> None:
    """No unit in memory has rejects, and no generation is restored."""


# -- three kinds of target --------------------------------------------------------------------------------------------


@dataclass
class Collection:
    """Documents by key, each with the version and the sequence of the unit that wrote it."""

    documents: dict[Key, tuple[Stamp, Texts]] = field(default_factory=dict[Key, tuple[Stamp, Texts]])
    newest: int = 0  # version of the newest unit

    def rows(self) -> dict[Key, Texts]:
        return {key: row for key, (_, row) in self.documents.items()}


class Target:
    """Rows that users see, and loads built aside; what each kind adds is when a unit takes effect."""

    def __init__(self, store: FencedStore) -> None:
        self.store = store
        self.exists = False
        self.visible = Collection()
        self.shown: int | None = None  # the generation that was published last
        self.loads: dict[int, Collection] = {}

    def open(self, collection: Callable[[], Collection], stamp: Stamp) -> "Generator[MemoryUnit]":
        raise NotImplementedError

    def open_publish(self, load: "MemoryLoad", stamp: Stamp) -> "Generator[MemoryUnit]":
        raise NotImplementedError

    def put(self, collection: Collection, rows: Sequence[tuple[Key, Texts]], stamp: Stamp) -> None:
        self.exists = self.exists or collection is self.visible
        for key, row in rows:
            collection.documents[key] = (stamp, row)

    def show(self, number: int) -> None:
        if self.shown != number:
            self.visible, self.shown, self.exists = self.loads.pop(number, Collection()), number, True


@dataclass
class MemoryUnit:
    """The rows of a unit; `write` sends them where the target takes them at once."""

    transaction: MemoryTransaction | None = None
    send: Callable[[Sequence[tuple[Key, Texts]]], None] | None = None
    rows: list[tuple[Key, Texts]] = field(default_factory=list[tuple[Key, Texts]])
    result: Written = NOTHING_WRITTEN

    def write(self, batch: Batch) -> None:
        rows = [((row["id"] or "",), row) for row in texts_of(batch)]
        self.rows += rows
        self.result = Written(Counts(written=len(rows), staged=len(rows)))
        if self.send is not None:
            self.send(rows)

    def delete(self, keys: Sequence[Key]) -> None:
        raise NotImplementedError


class JoinedTarget(Target):
    """In the store's database: rows and checkpoint commit together."""

    def open(self, collection: Callable[[], Collection], stamp: Stamp) -> Generator[MemoryUnit]:
        unit = MemoryUnit(MemoryTransaction(self.store))
        yield from self._committed(unit, lambda: self.put(collection(), unit.rows, stamp))

    def open_publish(self, load: "MemoryLoad", stamp: Stamp) -> Generator[MemoryUnit]:
        yield from self._committed(MemoryUnit(MemoryTransaction(self.store)), lambda: self.show(load.number))

    def _committed(self, unit: MemoryUnit, change: Callable[[], None]) -> Generator[MemoryUnit]:
        transaction = unit.transaction
        assert transaction is not None
        try:
            yield unit
            change()
            transaction.commit()
        finally:
            transaction.end()


class LedgerTarget(Target):
    """In another database: a unit commits by itself, and refuses a version that is not higher than the last."""

    def __init__(self, store: FencedStore) -> None:
        super().__init__(store)
        self.ledger = 0
        self.checks_versions = True

    def open(self, collection: Callable[[], Collection], stamp: Stamp) -> Generator[MemoryUnit]:
        unit = MemoryUnit()
        yield unit
        self._enter(stamp)
        self.put(collection(), unit.rows, stamp)

    def open_publish(self, load: "MemoryLoad", stamp: Stamp) -> Generator[MemoryUnit]:
        yield MemoryUnit()
        self._enter(stamp)
        self.show(load.number)

    def _enter(self, stamp: Stamp) -> None:
        if self.checks_versions and stamp.version <= self.ledger:
            raise LeaseLost("a newer unit was committed")
        self.ledger = stamp.version


class DocumentTarget(Target):
    """A document store: every row takes effect at once, and has a version; a publish replaces what it has seen."""

    def __init__(self, store: FencedStore) -> None:
        super().__init__(store)
        self.checks_versions = True
        self.compares_shown = True
        self.removes_leftovers = True
        self.postponed: list[Callable[[], None]] | None = None  # requests without an answer; None: all are answered

    def open(self, collection: Callable[[], Collection], stamp: Stamp) -> Generator[MemoryUnit]:
        opened = collection()
        if opened is not self.visible and self.removes_leftovers:
            self._remove_leftovers(opened, stamp)

        def send(rows: Sequence[tuple[Key, Texts]]) -> None:
            def request() -> None:
                for one in rows:
                    self._put(opened, one, stamp)

            if self.postponed is not None and not self.postponed:
                self.postponed.append(request)
                raise TransientError("no answer")
            request()

        yield MemoryUnit(send=send)

    def open_publish(self, load: "MemoryLoad", stamp: Stamp) -> Generator[MemoryUnit]:
        if self.compares_shown and self.shown not in (load.seen, load.number):
            raise LeaseLost("another load was published")
        self.show(load.number)
        yield MemoryUnit()

    def _remove_leftovers(self, collection: Collection, stamp: Stamp) -> None:
        """What an earlier attempt at the same unit has left."""
        for key, (written, _) in list(collection.documents.items()):
            if written.sequence == stamp.sequence and written.version < stamp.version:
                del collection.documents[key]

    def _put(self, collection: Collection, one: tuple[Key, Texts], stamp: Stamp) -> None:
        stored = collection.documents.get(one[0])
        if self.checks_versions and stored is not None and stored[0].version > stamp.version:
            raise LeaseLost("a newer version is stored")
        self.put(collection, [one], stamp)


# -- the sink ---------------------------------------------------------------------------------------------------------


class MemorySink:
    """A Sink over any of the targets."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def describe(self, columns: Sequence[Column] = ()) -> TargetInfo:
        return TargetInfo(self.target.exists, ("id",), (Lane.TEXT,))

    def encode(self, batch: Batch) -> Batch:
        return batch

    @contextmanager
    def unit(self, stamp: Stamp) -> Generator[MemoryUnit]:
        yield from self.target.open(lambda: self.target.visible, stamp)

    def load(self, generation: Generation) -> "MemoryLoad":
        return MemoryLoad(self.target, generation.number)

    def digest(self, compare: Compare, rows: Iterator[Batch] | None = None) -> Sequence[Digest] | None:
        return None

    def fetch(self, only: Selection, columns: Sequence[Column]) -> Iterator[Batch]:
        return iter(())

    def cancel(self) -> None: ...

    def close(self) -> None: ...

    @classmethod
    def sweep(cls, job: Any) -> Sequence[str]:
        return ()


class MemoryLoad:
    def __init__(self, target: Target, number: int) -> None:
        self.number = number
        self.seen = target.shown  # what a publish replaces
        self._target = target

    @property
    def state(self) -> LoadState:
        if self._target.shown == self.number:
            return LoadState.PUBLISHED
        return LoadState.STAGED if self.number in self._target.loads else LoadState.ABSENT

    @contextmanager
    def unit(self, stamp: Stamp) -> Generator[MemoryUnit]:
        yield from self._target.open(lambda: self._target.loads.setdefault(self.number, Collection()), stamp)

    @contextmanager
    def publish(self, stamp: Stamp, info: LoadInfo) -> Generator[MemoryUnit]:
        yield from self._target.open_publish(self, stamp)

    def discard(self) -> None:
        self._target.loads.pop(self.number, None)


# -- pipelines --------------------------------------------------------------------------------------------------------

_tokens = itertools.count(1)
DEFINITION = Definition(
    name="in_memory", source_query="SELECT 1 AS id", target_table="analytics.t", key_columns=("id",)
)


class MemoryRun(Held):
    """A claim of a pipeline in memory."""

    def __init__(self, pipeline: "MemoryPipeline") -> None:
        self._pipeline = pipeline
        self._is_full = pipeline.asks_full
        store = pipeline.target.store
        store.token = next(_tokens)
        claim = Claim(PipelineId(UUID(int=1)), DEFINITION, RunId(1), store.token, 0.0, 1, RunOptions(), 1)
        self.checkpoint = StoreCheckpoint(claim, cast(Link, store))

    def work(self, points: Points, control: ScriptedControl) -> bool:
        plan = points.watch(replace(self._pipeline.plan(), full_run=self._is_full))
        return run_plan(plan, points.watch_checkpoint(self.checkpoint), control)

    def leave(self, ended: Outcome | VitrineError) -> None: ...

    def drop(self) -> None: ...


class MemoryPipeline(Tested):
    """A pipeline from a list to a target in memory."""

    def __init__(self, table: ListTable, target: Target, *, mode: str = "full", incremental_key: str = "") -> None:
        self.table = table
        self.target = target
        self.incremental = mode == "incremental"
        self.key = ("id",)
        self._cursor = incremental_key

    def rows(self) -> dict[Key, Texts]:
        return self.target.visible.rows()

    def plan(self) -> Plan:
        sink = MemorySink(self.target)
        order = (self._cursor, "id") if self.incremental else ("id",)
        return Plan(
            source=ListSource(self.table),
            sink=sink,
            transforms=(),
            lane=Lane.TEXT,
            target=sink.describe(),
            incremental=self.incremental,
            order=order,
            cursor_column=self._cursor or None,
            cursor_types=", ".join(order),
            fingerprint=str(self.table.version),
            max_delete_ratio=None,
        )

    def claim(self, **options: bool) -> MemoryRun:
        return MemoryRun(self)

    def take_over(self) -> MemoryRun | None:
        """Not while a transaction holds the pipeline's row."""
        return None if self.target.store.saving else MemoryRun(self)


class MemoryBench:
    """Makes pipelines whose targets are of one kind."""

    def __init__(self, kind: Callable[[FencedStore], Target]) -> None:
        self._kind = kind

    def pipeline(self, table: ListTable, **fields: Any) -> MemoryPipeline:
        return MemoryPipeline(table, self._kind(FencedStore()), **fields)
