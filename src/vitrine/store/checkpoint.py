"""The checkpoint of a claim, saved under the fence, in the transaction of its rows where there is one."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple, cast

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from vitrine.core import keys
from vitrine.core.checks import Results, combined
from vitrine.core.protocols import Outcome, Stop, Transaction
from vitrine.core.rows import (
    UNITS_PER_TOKEN,
    Counts,
    Cursor,
    Entry,
    Generation,
    KeptGeneration,
    Position,
    Reject,
    Saved,
    Stamp,
    State,
    Step,
    Written,
)
from vitrine.core.status import PipelineId, RequestKind, Status
from vitrine.definition.pipeline import Claim
from vitrine.errors import CheckpointMoved, LeaseLost
from vitrine.postgres import Connection
from vitrine.store import state
from vitrine.store.database import Link, execute, fetch_all, fetch_one
from vitrine.store.database import transaction as store_transaction


def store_rejects(connection: Connection, claim: Claim, rejects: Sequence[Reject], healed: Sequence[str]) -> None:
    """Store rejected rows, the last one of each key, and close the rejects of keys that are written now."""
    if rejects:
        # one INSERT cannot update a row twice
        last = {reject.key: reject for reject in rejects}.values()
        stored = [
            {
                "key": reject.key,
                "column_name": reject.column,
                "code": reject.code,
                "reason": reject.reason,
                "row": reject.row,
            }
            for reject in last
        ]
        # one text instead of arrays: the driver takes longer to escape them than the server to store the rows
        execute(connection, "upsert_rejects", id=claim.pipeline_id, run_id=claim.run_id, rejects=json.dumps(stored))
    # a key that has both a row that was written and one that does not fit stays in quarantine
    if closed := {*healed}.difference(reject.key for reject in rejects):
        execute(connection, "close_rejects", id=claim.pipeline_id, keys=json.dumps(sorted(closed)))


class OpenReject(NamedTuple):
    """A row in quarantine."""

    id: int
    run_id: int
    key: str  # as a person reads it
    column: str | None  # None: the row as a whole breaks a rule
    code: str
    reason: str
    created_at: datetime
    row: dict[str, Any] | None  # None: it was not asked for


def list_page(
    connection: Connection, pipeline_id: PipelineId, *, after: int = 0, limit: int = 100, with_rows: bool = False
) -> list[OpenReject]:
    """One page of the quarantine, oldest first; the rows themselves only `with_rows`."""
    return [_open_reject(row) for row in _list(connection, pipeline_id, after, limit, with_rows=with_rows)]


def find(connection: Connection, pipeline_id: PipelineId, texts: Sequence[str]) -> OpenReject | None:
    """The reject of a key, which has one of these texts; None if it is not in quarantine."""
    row = fetch_one(connection, "get_reject", id=pipeline_id, keys=list(texts))
    return _open_reject(row) if row else None


def list_open(connection: Connection, pipeline_id: PipelineId, limit: int = 100) -> list[DictRow]:
    """Rows in quarantine, oldest first; keys as a person reads them."""
    rows = _list(connection, pipeline_id, 0, limit, with_rows=True)
    return [row | {"key": keys.readable(row["key"])} for row in rows]


def _list(connection: Connection, pipeline_id: PipelineId, after: int, limit: int, *, with_rows: bool) -> list[DictRow]:
    return fetch_all(connection, "list_rejects", id=pipeline_id, after=after, limit=limit, with_rows=with_rows)


def _open_reject(row: DictRow) -> OpenReject:
    return OpenReject(
        id=row["id"],
        run_id=row["run_id"],
        key=keys.readable(row["key"]),
        column=row["column_name"],
        code=row["code"],
        reason=row["reason"],
        created_at=row["created_at"],
        row=row["row"],
    )


def count_open(connection: Connection, pipeline_id: PipelineId) -> int:
    row = fetch_one(connection, "count_rejects", id=pipeline_id)
    return row["rows"] if row else 0


def advance(state: State, entry: Entry, cursor_types: str) -> State:
    """The state after a save: how each step changes checkpoint and load."""
    written = entry.written
    state = replace(
        state,
        identity=written.identity or state.identity,
        facts=state.facts if written.facts is None else written.facts,
        totals=state.totals + written.counts,
        # guarantee: M4
        checks=combined(state.checks, written.checks) if written.checks else state.checks,
    )
    generation = state.generation
    match entry.step:
        case Step.RESTORED if entry.restored is not None:
            return _restored(state, entry.restored, written)
        case Step.CHECKPOINT:
            return replace(state, position=entry.position, cursor_types=cursor_types)
        case Step.STAGED if generation is not None:
            rows = generation.rows + written.counts.staged
            staged = replace(generation, cursor=entry.end, position=entry.position, rows=rows)
            return replace(state, generation=staged)
        case Step.PUBLISHED:
            # a load of an incremental pipeline sets its checkpoint; one that ends without any reads everything again
            types = None if entry.position.is_start else cursor_types
            return replace(state, generation=None, published=generation, position=entry.position, cursor_types=types)
        case Step.DISCARDED:
            return replace(state, generation=None)
        case Step.BACKFILL if entry.end is not None:
            return replace(state, backfill=entry.end)
        case _:
            return state


def _restored(state: State, kept: KeptGeneration, written: Written) -> State:
    """The state that belongs to an earlier generation; a load under construction is closed."""
    return replace(
        state,
        position=kept.position,
        cursor_types=kept.cursor_types,
        generation=None,
        identity=written.identity or kept.identity,
        facts=kept.facts if written.facts is None else written.facts,
    )


def moves(before: State, after: State, counts: Counts) -> bool:
    """Whether the save is progress that a repeated run need not do again."""
    return (
        counts.written > 0
        or counts.deleted > 0
        or before.position != after.position
        or (before.generation and before.generation.cursor) != (after.generation and after.generation.cursor)
        or after.published is not before.published
        or after.backfill != before.backfill
    )


class _Unconfirmed(NamedTuple):
    """A save whose commit was not confirmed yet."""

    state: State
    sequence: int
    moves: bool


class StoreCheckpoint:
    """The Checkpoint of one claim, over all attempts inside the run."""

    def __init__(self, claim: Claim, store: Link) -> None:
        self._claim = claim
        self._store = store
        self._state = State()
        self._cursor_types = ""
        self._backfill_key = claim.backfill_key if claim.kind is RequestKind.BACKFILL else None
        self._is_open = False
        self._sequence = 0  # batch_seq as of the last open or save
        self._units = 0  # started under this token
        self._unconfirmed: _Unconfirmed | None = None
        self.moved = 0  # saves that made progress

    @property
    def state(self) -> State:
        return self._state

    @property
    def sequence(self) -> int | None:
        """The batch_seq that the state must have when the run ends; None: the run did not open the state."""
        return self._sequence if self._is_open else None

    def open(self, cursor_types: str) -> State:
        self._cursor_types = cursor_types
        connection = self._store.connection()
        with store_transaction(connection):
            hold(connection, self._claim)
            # waits for a commit that is still in progress on a lost connection
            row = fetch_one(connection, "open_state", id=self._claim.pipeline_id, token=self._claim.token)
        if row is None:
            raise CheckpointMoved("the state was deleted while the run started")
        self._settle(row["batch_seq"])
        return self._load(row)

    def open_generation(self, fingerprint: str, bound: str | None) -> Generation:
        connection = self._store.connection()
        with store_transaction(connection):
            hold(connection, self._claim)
            row = fetch_one(
                connection,
                "open_generation",
                id=self._claim.pipeline_id,
                fingerprint=fingerprint,
                horizon=bound,
                batch_seq=self._sequence,
            )
        if row is None:
            raise CheckpointMoved("the state was changed while the full load started")
        generation = self._load(row).generation
        if generation is None:
            raise CheckpointMoved("the state was changed while the full load started")
        return generation

    def stamp(self) -> Stamp:
        self._units += 1
        if self._units >= UNITS_PER_TOKEN:
            raise Stop(Outcome.RELEASED)  # the next claim has a new token, and with it new versions
        token = self._claim.token
        # guarantee: A22
        return Stamp(token, self._sequence + 1, token * UNITS_PER_TOKEN + self._units)

    def save(self, entry: Entry, transaction: Transaction | None) -> Saved:
        if self._unconfirmed is not None:
            self.open(self._cursor_types)  # the commit of the previous unit failed
        if transaction is not None:
            # in a transaction of another database this finds no pipeline row, so it saves nothing
            return self._save(cast(Connection, transaction), entry)
        connection = self._store.connection()
        with store_transaction(connection):
            saved = self._save(connection, entry)
        self.confirm()
        return saved

    def confirm(self) -> None:
        """The transaction of the last save has committed."""
        if self._unconfirmed is not None:
            self._state = self._unconfirmed.state
            self._sequence = self._unconfirmed.sequence
            self.moved += self._unconfirmed.moves
            self._unconfirmed = None

    def _save(self, connection: Connection, entry: Entry) -> Saved:
        after = advance(self._state, entry, self._cursor_types)
        counts, generation = entry.written.counts, after.generation
        moved = moves(self._state, after, counts)
        row = fetch_one(
            connection,
            "save_state",
            id=self._claim.pipeline_id,
            token=self._claim.token,
            run_id=self._claim.run_id,
            batch_seq=self._sequence,
            cursor=_array(after.position.cursor),
            pending_cursor=_array(after.position.pending_cursor),
            pending_since=after.position.pending_since,
            cursor_types=after.cursor_types,
            generation_open=generation is not None,
            generation_cursor=_array(generation.cursor) if generation else None,
            generation_position=_array(generation.position.cursor) if generation else None,
            generation_rows=generation.rows if generation else 0,
            identity=after.identity,
            facts=Jsonb(after.facts),
            backfill_key=self._backfill_key,
            backfill_cursor=_array(after.backfill),
            read=counts.read,
            written=counts.written,
            deleted=counts.deleted,
            rejected=counts.rejected,
            repeated=counts.repeated,
            moves=moved,
            batches=1 if counts.read else 0,
            seconds=None if entry.started is None else time.monotonic() - entry.started,
        )
        if row is None:
            raise lease_lost(self._claim)
        if row["batch_seq"] is None:
            raise CheckpointMoved("another session changed the checkpoint of this run")
        store_rejects(connection, self._claim, entry.written.rejects, entry.written.healed)
        if entry.written.checks:
            record_checks(connection, self._claim, after.checks)
        if entry.step is Step.PUBLISHED and self._state.generation is not None:
            state.record_generation(connection, self._claim, self._state.generation, self._state, after)
        if entry.restored is not None:
            state.restore_generation(connection, self._claim, entry.restored, self._state)
        self._unconfirmed = _Unconfirmed(after, row["batch_seq"], moved)
        return Saved(row["status"] == Status.PAUSE_REQUESTED, row["reload_version"])

    def _settle(self, sequence: int) -> None:
        """A save whose commit got no reply counts if it was applied: only it can have advanced the sequence."""
        # guarantee: B2
        # guarantee: B3
        if self._unconfirmed is not None and self._unconfirmed.sequence == sequence:
            self.confirm()
        self._unconfirmed = None

    def _load(self, row: DictRow) -> State:
        """The state as stored; fields that belong to the claim are kept."""
        stored = state.of_row(row)
        self._sequence, self._is_open = stored.batch_seq, True
        self._state = replace(
            self._state,
            position=stored.position,
            cursor_types=stored.cursor_types,
            generation=_generation(stored, row) if stored.generation_open else None,
            published=_still_published(self._state.published, stored),
            identity=stored.identity,
            facts=stored.facts,
            backfill=self._backfill_in(row),
        )
        return self._state

    def _backfill_in(self, row: DictRow) -> Cursor | None:
        """How far an earlier attempt of the same backfill has come."""
        if self._backfill_key is None or row["backfill_key"] != self._backfill_key or row["backfill_cursor"] is None:
            return None
        return tuple(row["backfill_cursor"])


def record_checks(connection: Connection, claim: Claim, results: Results) -> None:
    """Store what the checks have found with the run; LeaseLost if another runner has the pipeline."""
    checks = Jsonb([result.stored() for result in results])
    updated = execute(
        connection, "record_checks", id=claim.pipeline_id, token=claim.token, run_id=claim.run_id, checks=checks
    )
    if not updated:
        raise lease_lost(claim)


def hold(connection: Connection, claim: Claim) -> None:
    """Inside a transaction: no other runner takes the pipeline before it ends; LeaseLost if one has."""
    if fetch_one(connection, "hold_lease", id=claim.pipeline_id, token=claim.token) is None:
        raise lease_lost(claim)


def lease_lost(claim: Claim) -> LeaseLost:
    return LeaseLost(f"another runner has taken over pipeline '{claim.definition.name}'; this run writes nothing more")


def _still_published(published: Generation | None, stored: state.StoredState) -> Generation | None:
    """None if the load is under construction again: a crashed server has lost the commit that published it."""
    is_lost = published is not None and stored.generation_open and stored.generation == published.number
    return None if is_lost else published


def _generation(stored: state.StoredState, row: DictRow) -> Generation:
    return Generation(
        number=stored.generation,
        cursor=stored.generation_cursor,
        position=Position(stored.generation_position),
        rows=stored.generation_rows,
        bound=stored.generation_bound,
        fingerprint=stored.generation_fingerprint or "",
        age=row["generation_age"],
        outdated=row["generation_outdated"],
    )


def _array(cursor: Cursor | None) -> list[str] | None:
    return list(cursor) if cursor is not None else None
