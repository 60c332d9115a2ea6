"""How far the checkpoint of a query may advance."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from vitrine.connectors.postgres import PostgresSourceOptions
from vitrine.connectors.postgres.source import clock, horizon
from vitrine.connectors.postgres.source import cursor_codec as codec
from vitrine.connectors.postgres.source.connections import SourceConnections
from vitrine.connectors.postgres.source.lineage import Relations
from vitrine.connectors.postgres.source.ordered import OrderedQuery
from vitrine.connectors.postgres.source.positions import EndTracker, PendingTracker, TimeTracker, Tracker
from vitrine.connectors.postgres.source.query import SourceColumn, SourceQuery
from vitrine.errors import ConfigError
from vitrine.flow.rows import Read, Watermark
from vitrine.postgres import translated

log = logging.getLogger(__name__)

SHORTEST_STALL = timedelta(seconds=1)
"""No warning for transactions shorter than this, however small the margin."""

# Between the bound and the present, local times may jump by this much
_CLOCK_CHANGE = timedelta(hours=1)


class Watermarks:
    """Watermarks of one query, and the positions that follow from them."""

    def __init__(
        self,
        query: SourceQuery,
        relations: Relations,
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
        if found.type_oid in codec.TIMES:
            return self._time_watermark(found)
        if self._options.cursor_is_monotonic:
            return None
        if found.type_oid not in codec.INTEGERS:
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
        if column.type_oid not in codec.INTEGERS or self._options.cursor_is_monotonic:
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

    def _blocker(self, seen: horizon.Horizon) -> str | None:
        """The session to report: not one that the margin covers, because every busy source has some at any moment."""
        return seen.blocker if seen.at is None or seen.lag > self._options.horizon_margin else None

    def tracker(self, read: Read, ordered: OrderedQuery) -> Tracker:
        """Positions of one read, held back by its watermark."""
        if read.watermark is None:
            return EndTracker(read.start)
        if ordered.type_oid in codec.TIMES:
            return TimeTracker(read.start, read.watermark, ordered.type_oid)
        margin, disorder = self._options.horizon_margin, self._options.cursor_disorder
        return PendingTracker(read.start, read.watermark, margin, ordered.type_oid, self._clock, disorder)

    def latest(self, read: Read, ordered: OrderedQuery) -> int | None:
        """A cursor above this number is in the future; None if that is unknown."""
        mark = read.watermark
        if mark is None or mark.bound is None or ordered.type_oid not in codec.TIMES:
            return None
        margin = self._options.horizon_margin
        behind = mark.lag + margin if self._options.lookback is None else self._options.lookback
        if ordered.type_oid != codec.TIMESTAMPTZ:
            behind += _CLOCK_CHANGE
        return codec.text_number(ordered.type_oid, mark.bound) + codec.length_number(ordered.type_oid, behind + margin)

    def _read_horizon(self) -> horizon.Horizon:
        """The horizon; logs a warning if it holds the checkpoint back for longer than the margin does."""
        # nothing stands behind a plain table
        relations = () if self._query.relations.are_plain else self._relations
        session = self._connections.idle()
        with session.under(self._connections.planning):
            seen = horizon.read(session, relations, self._query.functions)
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
            return clock.latest_visible(connection)

    def _clock(self) -> datetime:
        """The source's clock."""
        with translated("source"), self._connections.formatting() as connection:
            return clock.now(connection)

    def _bound(self, column: SourceColumn, at: datetime, margin: timedelta) -> str:
        """`at` minus the margin, as text of the column's type."""
        type_name, zone = column.facts.declared, self._options.cursor_timezone
        if column.type_oid == codec.TIMESTAMPTZ and type_name == column.facts.bare:
            with suppress(OverflowError):  # years that Python lacks
                return codec.moment_text(at.astimezone(UTC) - margin)
        with translated("source"), self._connections.formatting() as connection:
            if column.type_oid == codec.TIMESTAMPTZ:
                return clock.bound(connection, type_name, at, margin)
            return clock.local_bound(connection, type_name, at, margin, zone)
