"""The StateManager of a run: saves a position in the transaction of its rows."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from vitrine import metrics
from vitrine.errors import CheckpointMoved, DataError
from vitrine.flow import Counts, Outcome, Position, Unit
from vitrine.model import Claim, Cursor
from vitrine.pace import Pace
from vitrine.postgres import Connection
from vitrine.status import Status
from vitrine.store import checkpoints, rejects
from vitrine.store.database import fetch_one

log = logging.getLogger(__name__)

TELL_SECONDS = 10.0
"""Of a long run one batch in so many seconds is told at level info; every batch is told at debug."""

GLANCE_SECONDS = 0.5
"""How long a rest goes on without a look at the store."""


@dataclass(frozen=True)
class _Saved:
    """What was put into a transaction whose commit nobody has confirmed yet."""

    batch_seq: int
    counts: Counts
    moves: bool  # the checkpoint, or a row of the mart
    publishes: bool


class PostgresState:
    """A run's StateManager: token check and checkpoint join the transaction that wrote the rows."""

    def __init__(
        self,
        claim: Claim,
        state: checkpoints.State,
        *,
        fingerprint: str,
        full: bool,
        interruption: Callable[[], Outcome | None],
        on_progress: Callable[[Counts], None] = lambda counts: None,
        settled_part: Callable[[Cursor, str], Cursor] | None = None,
        on_all_read: Callable[[], None] = lambda: None,
        on_reload: Callable[[int | None], None] = lambda version: None,
        rest: Callable[[float], Outcome | None] = time.sleep,
    ) -> None:
        self._claim = claim
        self._state = state
        self._full = full
        self._fingerprint = fingerprint
        self._batch_seq = state.batch_seq
        self._staged = state.generation_rows
        self._staged_to = state.generation_cursor
        self._settled_part = settled_part  # of a first load's end, beside its horizon; None: it leaves no checkpoint
        self._opened = self._told = time.monotonic()
        self._batches = 0
        self._interruption = interruption
        self._on_progress = on_progress
        self._on_all_read = on_all_read
        self._on_reload = on_reload
        self._rest = rest
        self._reload_version: int | None = None  # whose pace is asked for; None: that of the claim
        self._pause_seen = False
        self._saved: _Saved | None = None
        self.moved = False  # something was committed that a repetition would not have to do again
        self.published = False  # a full load is in the mart
        self._began = time.monotonic()
        if not full and state.cursor_fingerprint not in (None, fingerprint):
            raise DataError(
                f"the checkpoint was made with cursor and key ({state.cursor_fingerprint}), the query now has"
                f" ({fingerprint}); reset the state to read everything again",
                code="STATE_MISMATCH",
            )

    @property
    def position(self) -> Position:
        return Position(self._state.generation_cursor) if self._full else self._state.position

    @property
    def generation_horizon(self) -> str | None:
        return self._state.generation_horizon

    def reread(self, connection: Connection) -> None:
        """Go on from where the state is now. LeaseLost if the pipeline is no longer ours."""
        self._batch_seq = checkpoints.open_state(connection, self._claim).batch_seq

    def follow(self, position: Position) -> "CatchUpState":
        """The state of a catch-up that goes on where this full load ended."""
        return CatchUpState(
            self._claim,
            replace(self._state, position=position, batch_seq=self._batch_seq, cursor_fingerprint=None),
            fingerprint="",
            full=False,
            interruption=self._interruption,
            on_progress=self._on_progress,
            on_all_read=self._on_all_read,
            on_reload=self._on_reload,
            rest=self._rest,
        )

    def rest(self, pace: Pace) -> Outcome | None:
        """In short pieces, so that a pause, a stop, a lost lease or another pace is noticed within a second."""
        while (seconds := pace.delay()) > 0:
            if outcome := self._rest(min(seconds, GLANCE_SECONDS)):
                return outcome
            self._began = time.monotonic()  # a rest is no part of the batch that follows
        pace.begin()
        return None

    def save(self, unit: Unit, position: Position, counts: Counts) -> None:
        moves = position != self.position or counts.written > 0
        if self._full:
            self._advance(unit, "save_generation", counts, moves=moves, cursor=_array(position.cursor))
            self._staged += counts.read - counts.rejected
            self._staged_to = position.cursor
        else:
            self._advance(
                unit,
                "save_cursor",
                counts,
                moves=moves,
                cursor=_array(position.cursor),
                pending_cursor=_array(position.pending_cursor),
                pending_since=position.pending_since,
                fingerprint=self._fingerprint,
            )

    def publish(self, unit: Unit, staged: int, counts: Counts) -> None:
        if staged != self._staged:
            raise DataError(
                f"staging holds {staged} rows where {self._staged} were loaded: somebody changed it; run again",
                code="STAGING_MISMATCH",
            )
        first = self._first_checkpoint()
        fingerprint = self._fingerprint if first else None
        self._advance(
            unit,
            "close_generation",
            counts,
            moves=True,
            publishes=True,
            cursor=_array(first),
            fingerprint=fingerprint,
        )

    def _first_checkpoint(self) -> Cursor | None:
        """Where changes are read from after a first load: what was settled when it began was in its snapshot."""
        horizon, end = self._state.generation_horizon, self._staged_to
        if self._settled_part is None or horizon is None or end is None:
            return None
        return self._settled_part(end, horizon)

    def discard(self, unit: Unit) -> None:
        self._advance(unit, "close_generation", Counts(), moves=False, cursor=None, fingerprint=None)

    def committed(self, counts: Counts) -> Outcome | None:
        self._confirm()
        self._tell_batch(counts, time.monotonic())
        self._began = time.monotonic()
        self._on_progress(counts)
        self._on_reload(self._reload_version)
        return Outcome.PAUSED if self._pause_seen else self._interruption()

    def interruption(self) -> Outcome | None:
        return self._interruption()

    def all_read(self) -> None:
        self._on_all_read()

    def settle(self, connection: Connection) -> None:
        """After a lost connection: a unit whose commit was not answered is counted if it took place all the same."""
        saved = self._saved
        if saved is None:
            return
        where = {"id": self._claim.pipeline_id, "token": self._claim.token, "batch_seq": saved.batch_seq}
        if fetch_one(connection, "is_saved", **where) is not None:
            self._confirm()
            self._tell_batch(saved.counts, time.monotonic())
            self._on_progress(saved.counts)
        self._saved = None

    def _confirm(self) -> None:
        if self._saved is not None:
            self.moved |= self._saved.moves
            self.published |= self._saved.publishes
        self._saved = None

    def _tell_batch(self, counts: Counts, now: float) -> None:
        metrics.batch_written(
            self._claim.definition.name,
            read=counts.read,
            written=counts.written,
            deleted=counts.deleted,
            rejected=counts.rejected,
            seconds=now - self._began,
        )
        if not counts.read:
            return
        self._batches += 1
        level = logging.INFO if now - self._told >= TELL_SECONDS else logging.DEBUG
        if log.isEnabledFor(level):
            self._told = now if level == logging.INFO else self._told
            extra: dict[str, object] = {
                "action": "batch_written",
                **self._claim.log_fields(),
                "batch": self._batches,
                "rows_read": counts.read,
                "rows_written": counts.written,
                "batch_seconds": round(now - self._began, 3),
                "run_seconds": round(now - self._opened, 3),
            }
            log.log(level, "batch written", extra=extra)

    def _advance(
        self, unit: Unit, name: str, counts: Counts, *, moves: bool, publishes: bool = False, **arguments: Any
    ) -> None:
        row = fetch_one(
            unit.connection,
            name,
            id=self._claim.pipeline_id,
            token=self._claim.token,
            run_id=self._claim.run_id,
            batch_seq=self._batch_seq,
            read=counts.read,
            written=counts.written,
            deleted=counts.deleted,
            rejected=counts.rejected,
            repeated=counts.repeated,
            moves=moves,
            batches=1 if counts.read else 0,
            seconds=time.monotonic() - self._began,
            **arguments,
        )
        if row is None:
            raise checkpoints.lost(self._claim)
        if row["batch_seq"] is None:
            raise CheckpointMoved("the checkpoint is not where this run left it")
        rejects.store_rejects(unit.connection, self._claim, unit.rejects, unit.healed)
        self._batch_seq = row["batch_seq"]
        self._saved = _Saved(self._batch_seq, counts, moves, publishes)
        self._pause_seen = row["status"] == Status.PAUSE_REQUESTED
        self._reload_version = row["reload_version"]


class CatchUpState(PostgresState):
    """Fenced and counted like any other, but remembers no position: the next full load starts anew."""

    def save(self, unit: Unit, position: Position, counts: Counts) -> None:
        # what does not fit was counted by the load already; here it only takes the place of its older version
        self._advance(unit, "save_progress", replace(counts, rejected=0), moves=counts.written > 0)

    def committed(self, counts: Counts) -> Outcome | None:
        return super().committed(replace(counts, rejected=0))


def _array(cursor: Cursor | None) -> list[str] | None:
    return list(cursor) if cursor is not None else None
