"""How far the checkpoint of a query may advance: by the horizon and the clock of the source."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

from psycopg import sql
from psycopg.rows import DictRow

from vitrine import horizon
from vitrine.connectors.postgres import PostgresSourceOptions, cursor_codec
from vitrine.connectors.postgres.source.query import OrderedQuery, SourceColumn, SourceQuery
from vitrine.connectors.postgres.source.relations import Outside, RelationTree, find_outside
from vitrine.connectors.postgres.source.session import SourceConnections
from vitrine.core.rows import Cursor, Position, Read, Watermark
from vitrine.errors import ConfigError
from vitrine.postgres import TEXT_FORMAT, Connection, in_transaction, raw, translated
from vitrine.sql.functions import Call

log = logging.getLogger(__name__)

# Of a standby, only the past up to the last replayed transaction is certain: the standby's own clock runs while replay
# waits, and a standby that has received everything cannot know that the primary has committed nothing since.
# guarantee: J7
_LATEST_VISIBLE = """
    SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_xact_replay_timestamp() ELSE clock_timestamp() END AS at
"""

# ALTER DATABASE SET, before what the reading account or its client may have set for itself
_USE_DATABASE_ZONE = """
    SELECT set_config('TimeZone', coalesce(
        (SELECT substr(setting, length('TimeZone=') + 1)
           FROM pg_db_role_setting AS s CROSS JOIN unnest(s.setconfig) AS setting
          WHERE s.setrole = 0 AND lower(setting) LIKE 'timezone=%'
            AND s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
          ORDER BY s.setdatabase = 0 LIMIT 1),
        (SELECT reset_val FROM pg_settings WHERE name = 'TimeZone')), true) AS zone
"""

_SETTLED = "(%(at)s::timestamptz - make_interval(secs => %(margin)s))"

# When clocks are set back, local times repeat: a row written later may have a lower local time. So the bound is the
# lowest local time of all moments from the settled one on. No zone sets its clocks back by more than 27 hours, and
# zones change at whole minutes.
# guarantee: J8
_LOWEST_LOCAL = """
    SELECT CAST(min({local}) AS {type})::text AS bound
      FROM (SELECT {settled} UNION ALL
            SELECT generate_series(date_trunc('minute', {settled}, 'UTC') + interval '1 minute',
                                   {settled} + interval '27 hours', interval '1 minute')) AS later(moment)
"""


def server_now(connection: Connection) -> datetime:
    """The present."""
    return _one(connection, sql.SQL("SELECT clock_timestamp() AS at"))["at"]


def latest_visible(connection: Connection) -> datetime | None:
    """What committed before this time is visible; None: a standby has not replayed any transaction yet."""
    return _one(connection, sql.SQL(_LATEST_VISIBLE))["at"]


def use_database_zone(connection: Connection) -> str:
    """Use the database's TimeZone until the transaction ends; returns its name."""
    return _one(connection, sql.SQL(_USE_DATABASE_ZONE))["zone"]


def clock_bound(connection: Connection, type_name: str, at: datetime, margin: timedelta) -> str:
    """`at` minus the margin, as text of a type with time zone."""
    statement = sql.SQL("SELECT CAST({} AS {})::text AS bound").format(raw(_SETTLED), raw(type_name))
    return _one(connection, statement, {"at": at, "margin": margin.total_seconds()})["bound"]


def local_clock_bound(connection: Connection, type_name: str, at: datetime, margin: timedelta, zone: str | None) -> str:
    """A local time, as text of a type without time zone, that no moment from `at` minus the margin on is below.

    None: the zone of the database. It is used as a setting and not by name, because AT TIME ZONE reads some names of
    zones, such as CET, as abbreviations without daylight saving.
    """
    if zone is None:
        use_database_zone(connection)
    local = "moment::timestamp" if zone is None else "moment AT TIME ZONE %(zone)s"
    statement = sql.SQL(_LOWEST_LOCAL).format(local=raw(local), type=raw(type_name), settled=raw(_SETTLED))
    return _one(connection, statement, {"at": at, "margin": margin.total_seconds(), "zone": zone})["bound"]


def _one(connection: Connection, statement: sql.SQL | sql.Composed, arguments: dict[str, Any] | None = None) -> DictRow:
    row = connection.execute(statement, arguments).fetchone()
    if row is None:
        raise ConfigError("the source did not return the time", code="HORIZON_UNAVAILABLE")
    return row


class Horizon(NamedTuple):
    """`at`: start of the oldest open transaction, or the current time; None: unknown, the checkpoint must not move."""

    at: datetime | None
    now: datetime
    blocker: str | None  # the session that holds it back, if any
    prepared_since: datetime | None = None  # of the oldest prepared transaction, if that is the blocker

    @property
    def lag(self) -> timedelta:
        """How long the oldest open transaction has been open."""
        # guarantee: C3
        return self.now - (self.at or self.prepared_since or self.now)


def read_horizon(connection: Connection, relations: RelationTree = (), functions: Collection[Call] = ()) -> Horizon:
    """The horizon for these relations and functions; ConfigError (HORIZON_UNAVAILABLE) if it cannot be determined."""
    # in UTC: Python subtracts two times of one zone by their local clocks, wrong when clocks change between them
    with translated("source"), in_transaction(connection, TEXT_FORMAT):
        row = connection.execute(horizon.PLAIN).fetchone()
        # the function also knows that a reader who may call it cannot write through it
        is_unsure = row is not None and (row["hidden"] or row["oldest"] is not None)
        if is_unsure and _has_function(connection):
            row = connection.execute(horizon.CALL).fetchone()
        outside = find_outside(connection, relations, functions)
    if row is None:
        raise ConfigError("the source returned nothing about its sessions", code="HORIZON_UNAVAILABLE")
    if reason := _refusal(row) or _blind_spot(outside):
        raise ConfigError(
            f"the open transactions of the source cannot be determined: {reason}; or set options.lookback to the"
            " longest time from the time in a row until the row can be read, and every run reads that much again",
            code="HORIZON_UNAVAILABLE",
        )
    # guarantee: C4
    if row["prepared"]:
        return Horizon(None, row["now"], f"{row['prepared']} prepared transaction(s)", row["prepared_since"])
    if row["oldest"] is None or row["oldest"] >= row["now"]:
        return Horizon(row["now"], row["now"], None)
    return Horizon(row["oldest"], row["now"], f"pid {row['pid']}, role {row['role']}")


def _has_function(connection: Connection) -> bool:
    """Whether this account may call the function of `vitrine migrate --roles`, and it is unchanged."""
    arguments = {"schema": horizon.SCHEMA, "name": horizon.NAME, "body": horizon.BODY}
    found = connection.execute(horizon.FIND, arguments).fetchone()
    return found is not None and found["granted"]


def _refusal(row: dict[str, object]) -> str | None:
    if row["standby"]:
        return "it is a standby, which does not see the primary's sessions; read from the primary"
    if row["hidden"]:
        return (
            f"{row['hidden']} session(s) of other roles are hidden from '{row['reader']}';"
            f" GRANT pg_read_all_stats TO {row['reader']}, or run `vitrine migrate --roles`"
        )
    if row["disabled"]:
        return f"{row['disabled']} session(s) have track_activities off; switch it on"
    if row["subscriptions"]:
        # a disabled one may be enabled at any time, and then writes rows with times before that
        return f"logical subscription {row['subscriptions']} writes rows with times of another server"
    return None


def _blind_spot(found: Outside | None) -> str | None:
    if found is None:
        return None
    reads = "the query reads" if found.is_named else "a view or a table of the query reads"
    if found.is_foreign:
        return f"{reads} foreign table {found.name}, whose transactions run on another server; read it there"
    return f"{reads} materialized view {found.name}, whose refresh brings rows with old times; read its tables instead"


class Tracker(Protocol):
    """Positions of one read."""

    start: Position

    def after(self, raw: Sequence[bytes], end: Cursor | None) -> Position:
        """The position once everything up to `end` is written; `raw` is `end` in binary format."""
        ...

    def finished(self) -> Position | None:
        """The position once the query is exhausted, if that changes it."""
        ...


class EndTracker:
    """Nothing is held back: the position is the last row read."""

    def __init__(self, start: Position) -> None:
        self.start = start

    def after(self, raw: Sequence[bytes], end: Cursor | None) -> Position:
        return Position(end)

    def finished(self) -> Position | None:
        return None


class TimeTracker:
    """A time cursor: the position follows the rows up to the bound of the watermark, and stays there.

    The next run reads rows at or above the bound again; unchanged rows are not written.
    """

    def __init__(self, start: Position, watermark: Watermark, type_oid: int) -> None:
        self.start = start
        self._type_oid = type_oid
        self._held = start
        self._bound: int | None = None  # None: the position does not move
        if watermark.bound is not None:
            self._bound = cursor_codec.text_number(type_oid, watermark.bound)
            beyond = start.cursor is not None and cursor_codec.text_number(type_oid, start.cursor[0]) >= self._bound
            self._held = start if beyond else Position((watermark.bound,))

    def after(self, raw: Sequence[bytes], end: Cursor | None) -> Position:
        if self._bound is None:
            return self.start
        # guarantee: C1
        # guarantee: C11
        return Position(end) if cursor_codec.number(self._type_oid, raw[0]) < self._bound else self._held

    def finished(self) -> Position | None:
        return None


class PendingTracker:
    """An integer cursor is not a time: the end of a run becomes the checkpoint one run later.

    A lower number may commit after a higher one was read. So the end of a run is only pending, with the time of its
    snapshot. When every transaction of that time has ended, a run that reads from the old checkpoint sees all of their
    rows, and the pending cursor becomes the checkpoint.

    `disorder`: a later transaction may still insert a number this much below the highest one, because it was assigned
    long before. The pending cursor stays that much behind the end.
    """

    def __init__(
        self,
        start: Position,
        watermark: Watermark,
        margin: timedelta,
        type_oid: int,
        clock: Callable[[], datetime],
        disorder: int = 0,
    ) -> None:
        self.start = start
        self._disorder = disorder
        self._clock = clock
        self._type_oid = type_oid
        self._end: Cursor | None = None
        self._settled = (
            start.pending_since is not None
            and watermark.at is not None
            # guarantee: C22
            and watermark.at - margin >= start.pending_since
        )

    def after(self, raw: Sequence[bytes], end: Cursor | None) -> Position:
        self._end = self._held_back(raw, end)
        if not self._settled or not self.start.pending_cursor:
            return self.start
        if cursor_codec.number(self._type_oid, raw[0]) < int(self.start.pending_cursor[0]):
            return Position(end, self.start.pending_cursor, self.start.pending_since)
        return Position(self.start.pending_cursor, self.start.pending_cursor, self.start.pending_since)

    def finished(self) -> Position | None:
        if self._settled:
            end = self._end or self.start.pending_cursor
            still = end if end != self.start.pending_cursor else None
            return Position(self.start.pending_cursor, still, self._clock() if still else None)
        if self.start.pending_cursor is None and self._end not in (None, self.start.cursor):
            # the clock is read after the snapshot: a transaction with a lower number had started before it
            return Position(self.start.cursor, self._end, self._clock())
        return None

    def _held_back(self, raw: Sequence[bytes], end: Cursor | None) -> Cursor | None:
        """The end, or the number that is `disorder` below it, but not below what is stored."""
        # guarantee: J19
        if self._disorder == 0:
            return end
        lowest = -(1 << 8 * len(raw[0]) - 1)
        lowered = max(cursor_codec.number(self._type_oid, raw[0]) - self._disorder, lowest)
        stored = self.start.pending_cursor or self.start.cursor
        return stored if stored is not None and lowered <= int(stored[0]) else (str(lowered),)


SHORTEST_STALL = timedelta(seconds=1)
"""No warning for transactions shorter than this, however small the margin."""

# Between the bound and the present, local times may jump by this much
_CLOCK_CHANGE = timedelta(hours=1)


class Watermarks:
    """Watermarks of one query, and the positions that follow from them."""

    def __init__(
        self,
        query: SourceQuery,
        relations: RelationTree,
        connections: SourceConnections,
        options: PostgresSourceOptions,
        log_fields: Mapping[str, object],
    ) -> None:
        self._query = query
        self._relations = relations
        self._connections = connections
        self._options = options
        self._log_fields = log_fields

    def read(self, column: str) -> Watermark | None:
        """The watermark of a cursor column, as of now; None if positions are not held back."""
        found = self._query.column(column)
        self._refuse_unused_options(found)
        if found.type_oid in cursor_codec.TIMES:
            return self._time_watermark(found)
        if self._options.cursor_is_monotonic:
            return None
        if found.type_oid not in cursor_codec.INTEGERS:
            raise ConfigError(
                f"incremental_key '{column}' is of type {found.type}, which does not grow with time; use a time or an"
                " integer or, if it always grows in commit order, set options.cursor_is_monotonic: true",
                code="CURSOR_TYPE",
            )
        if self._options.lookback is not None:
            raise ConfigError("options.lookback needs a time as incremental_key, not an integer", code="CURSOR_TYPE")
        seen = self._read_horizon()
        return Watermark(None, seen.at, seen.lag, self._blocker(seen))

    def _refuse_unused_options(self, column: SourceColumn) -> None:
        if self._options.cursor_disorder == 0:
            return
        if column.type_oid not in cursor_codec.INTEGERS or self._options.cursor_is_monotonic:
            raise ConfigError(
                f"options.cursor_disorder has no effect on incremental_key '{column.name}': it needs an integer without"
                " options.cursor_is_monotonic; remove it",
                code="CURSOR_TYPE",
            )

    def _time_watermark(self, column: SourceColumn) -> Watermark:
        lookback = self._options.lookback
        if lookback is not None:
            latest = self._latest_visible()
            bound = None if latest is None else self._bound(column, latest, lookback)
            return Watermark(bound, latest, timedelta(0))
        seen = self._read_horizon()
        bound = None if seen.at is None else self._bound(column, seen.at, self._options.horizon_margin)
        return Watermark(bound, seen.at, seen.lag, self._blocker(seen))

    def _blocker(self, seen: Horizon) -> str | None:
        """The session to report: not one that the margin covers, because every busy source has some at any moment."""
        return seen.blocker if seen.at is None or seen.lag > self._options.horizon_margin else None

    def tracker(self, read: Read, ordered: OrderedQuery) -> Tracker:
        """Positions of one read, held back by its watermark."""
        if read.watermark is None:
            return EndTracker(read.start)
        if ordered.type_oid in cursor_codec.TIMES:
            return TimeTracker(read.start, read.watermark, ordered.type_oid)
        margin, disorder = self._options.horizon_margin, self._options.cursor_disorder
        return PendingTracker(read.start, read.watermark, margin, ordered.type_oid, self._clock, disorder)

    def latest(self, read: Read, ordered: OrderedQuery) -> int | None:
        """A cursor above this number is in the future; None if that is unknown."""
        mark = read.watermark
        if mark is None or mark.bound is None or ordered.type_oid not in cursor_codec.TIMES:
            return None
        margin = self._options.horizon_margin
        behind = mark.lag + margin if self._options.lookback is None else self._options.lookback
        if ordered.type_oid != cursor_codec.TIMESTAMPTZ:
            behind += _CLOCK_CHANGE
        return cursor_codec.text_number(ordered.type_oid, mark.bound) + cursor_codec.length_number(
            ordered.type_oid, behind + margin
        )

    def _read_horizon(self) -> Horizon:
        """The horizon; logs a warning if it holds the checkpoint back for longer than the margin does."""
        # nothing stands behind a plain table
        relations = () if self._query.relations.are_plain else self._relations
        session = self._connections.idle()
        with session.under(self._connections.planning):
            seen = read_horizon(session, relations, self._query.functions)
        if seen.lag > max(self._options.horizon_margin, SHORTEST_STALL):
            log.warning(
                "the checkpoint waits for a transaction that has been open for %d s (%s); rows are still written, but"
                " every run reads them again until that transaction ends",
                seen.lag.total_seconds(),
                seen.blocker,
                extra={"action": "horizon_stalled", "blocker": seen.blocker, **self._log_fields},
            )
        return seen

    def _latest_visible(self) -> datetime | None:
        """Everything that committed before this time can be read; None: a standby has replayed nothing yet."""
        with translated("source"), self._connections.formatting() as connection:
            return latest_visible(connection)

    def _clock(self) -> datetime:
        """The source's clock."""
        with translated("source"), self._connections.formatting() as connection:
            return server_now(connection)

    def _bound(self, column: SourceColumn, at: datetime, margin: timedelta) -> str:
        """`at` minus the margin, as text of the column's type."""
        type_name, zone = column.facts.declared, self._options.cursor_timezone
        if column.type_oid == cursor_codec.TIMESTAMPTZ and type_name == column.facts.bare:
            with suppress(OverflowError):  # years that Python lacks
                return cursor_codec.moment_text(at.astimezone(UTC) - margin)
        with translated("source"), self._connections.formatting() as connection:
            if column.type_oid == cursor_codec.TIMESTAMPTZ:
                return clock_bound(connection, type_name, at, margin)
            return local_clock_bound(connection, type_name, at, margin, zone)
