"""Backfills and rollbacks: whether a pipeline can have one, and what it consists of."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from vitrine.core.protocols import Checkpoint, RunControl, Sink
from vitrine.core.repair import generation_to_restore, kept_load, restore
from vitrine.core.rows import Column, CursorRange, KeptGeneration, Kind, bare_type
from vitrine.core.status import LEASED, Status
from vitrine.definition.context import RunInfo
from vitrine.definition.model import Definition, Mode
from vitrine.definition.pipeline import Claim, Pipeline
from vitrine.errors import ConfigError, RequestRefused, TransientError, TransitionRefused
from vitrine.plan import planner, validation
from vitrine.plan.planner import Known, Prepared
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import history
from vitrine.store.state import load_generation, load_state

_INTEGERS = {
    "smallint": (-(2**15), 2**15),
    "integer": (-(2**31), 2**31),
    "bigint": (-(2**63), 2**63),
    "oid": (0, 2**32),
}
_SHOWN = 60  # characters of a wrong value that a message repeats
_INFINITE = {"-infinity": -1, "infinity": 1}


@dataclass(frozen=True)
class CursorValue:
    """One value: its text, a lower one, and its place in the order."""

    text: str
    below: str  # equal to `text` if there is none
    place: Any = None  # None: only the source knows the order of the type

    def is_before(self, other: "CursorValue") -> bool:
        if self.place is None or other.place is None:
            return self.text != other.text
        return bool(self.place < other.place)


def parse_cursor_value(column: Column, text: str) -> CursorValue:
    """The value in the type of the column; ValueError with a sentence if it is not of that type."""
    given = text.strip()
    parser = _PARSERS.get(column.kind, _any)
    try:
        return parser(column, given)
    except (ValueError, OverflowError, InvalidOperation) as exc:
        reason = str(exc) if isinstance(exc, _Refused) else _EXPECTED.get(column.kind, "give another value")
        shown = given if len(given) <= _SHOWN else f"{given[:_SHOWN]}…"
        raise ValueError(
            f"'{shown}' is not a value of '{column.name}', which is of type {column.type}: {reason}"
        ) from None


class _Refused(ValueError):
    """A reason that the user may read."""


def _integer(column: Column, text: str) -> CursorValue:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
        raise ValueError(text)
    value = int(text)
    lowest, beyond = _INTEGERS.get(bare_type(column.type), _INTEGERS["bigint"])
    if not lowest <= value < beyond:
        raise _Refused(f"give an integer from {lowest} to {beyond - 1}")
    return CursorValue(str(value), str(max(value - 1, lowest)), value)


def _decimal(column: Column, text: str) -> CursorValue:
    value = Decimal(text)
    if not value.is_finite() or len(text) > 1000:
        raise ValueError(text)
    return CursorValue(f"{value:f}", f"{value - 1:f}", value)


def _float(column: Column, text: str) -> CursorValue:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    # the neighbour of a double may be the same real: one below any rounding
    lower = value - max(1.0, abs(value) * 1e-6)
    return CursorValue(repr(value), repr(lower), value)


def _date(column: Column, text: str) -> CursorValue:
    if text in _INFINITE:
        return CursorValue(text, text, (_INFINITE[text],))
    value = date.fromisoformat(text)
    before = value - timedelta(days=1) if value > date.min else value
    return CursorValue(value.isoformat(), before.isoformat(), (0, value))


def _moment(column: Column, text: str) -> CursorValue:
    """A time with a zone; without one it is UTC."""
    if text in _INFINITE:
        return CursorValue(text, text, (_INFINITE[text],))
    value = _time(text)
    value = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return CursorValue(_formatted(value), _formatted(_just_before(value)), (0, value))


def _local_time(column: Column, text: str) -> CursorValue:
    if text in _INFINITE:
        return CursorValue(text, text, (_INFINITE[text],))
    value = _time(text)
    if value.tzinfo is not None:
        raise _Refused("it has no time zone; give the time without one, such as 2025-01-31T12:00:00")
    return CursorValue(_formatted(value), _formatted(_just_before(value)), (0, value))


def _time(text: str) -> datetime:
    if re.search(r"[.,][0-9]{7,}", text):
        raise _Refused("give at most six digits of a second")
    return datetime.fromisoformat(text)


def _just_before(value: datetime) -> datetime:
    try:
        return value - timedelta(microseconds=1)
    except OverflowError:
        return value


def _formatted(value: datetime) -> str:
    """As PostgreSQL writes it; isoformat leaves zeros out as well."""
    text = value.replace(tzinfo=None).isoformat(sep=" ")
    return f"{text}+00" if value.tzinfo is not None else text


def _uuid(column: Column, text: str) -> CursorValue:
    value = UUID(text)
    return CursorValue(str(value), str(UUID(int=max(value.int - 1, 0))), value.int)


def _any(column: Column, text: str) -> CursorValue:
    if not text or "\0" in text:
        raise _Refused("give a text without NUL characters")
    return CursorValue(text, text)


_PARSERS: dict[Kind, Callable[[Column, str], CursorValue]] = {
    Kind.INTEGER: _integer,
    Kind.DECIMAL: _decimal,
    Kind.FLOAT: _float,
    Kind.DATE: _date,
    Kind.TIMESTAMP: _local_time,
    Kind.TIMESTAMPTZ: _moment,
    Kind.UUID: _uuid,
}
_EXPECTED = {
    Kind.INTEGER: "give an integer such as 1000",
    Kind.DECIMAL: "give a number such as 10.5",
    Kind.FLOAT: "give a number such as 10.5",
    Kind.DATE: "give a date such as 2025-01-31",
    Kind.TIMESTAMP: "give a time such as 2025-01-31T12:00:00",
    Kind.TIMESTAMPTZ: "give a time such as 2025-01-31T12:00:00Z",
    Kind.UUID: "give a UUID",
}


BACKFILL = "BACKFILL"
"""The code of a backfill that the pipeline or its range does not allow."""


def check_backfill(definition: Definition, settings: Settings, start: str, end: str) -> tuple[str, str]:
    """Both ends in the text format of the cursor's type; ConfigError if it is known that the backfill cannot work.

    The source is asked for a few seconds at most. If it does not answer, the ends are returned as they are: the runner
    decides.
    """
    try:
        _refuse_mode(definition)
        checked = planner.check(definition, settings)
        try:
            found = validation.within(
                validation.PREFLIGHT_SECONDS, lambda: _check_source(planner.prepare(checked), definition, start, end)
            )
        except TimeoutError:
            checked.cancel()
            return start, end
        except TransientError:
            return start, end
    except ConfigError as exc:
        # as an error of the request: one of the store has the driver's exception as its cause
        raise ConfigError(str(exc), code=exc.code, place=exc.place) from exc
    return found.start, found.end


def _check_source(built: Prepared, definition: Definition, start: str, end: str) -> CursorRange:
    try:
        return range_of(built, definition, start, end)
    finally:
        built.close()


def range_of(built: Prepared, definition: Definition, start: str | None, end: str | None) -> CursorRange:
    """The range in the type of the cursor; RequestRefused if the pipeline or the type does not allow it."""
    _refuse_mode(definition)
    if built.source.filtered is not None:
        raise RequestRefused(f"a backfill would not read its whole range: {built.source.filtered}", code="PARAM")
    if not built.plan.target.exists:
        raise RequestRefused(
            f"target {built.plan.target_name} does not exist, so there is nothing to complete; run the pipeline first",
            code=BACKFILL,
        )
    column = next(one for one in built.source.columns if one.name == definition.incremental_key)
    return parse_range(column, start or "", end or "")


def parse_range(column: Column, start: str, end: str) -> CursorRange:
    """Both ends in the type of the column; RequestRefused if one is not of it, or nothing can be between them."""
    first, last = _parse(column, "from", start), _parse(column, "to", end)
    if not first.is_before(last):
        raise RequestRefused(
            f"the range from {first.text} to {last.text} is empty: give a `to` above `from`", code=BACKFILL
        )
    return CursorRange(first.text, last.text, first.below)


def _parse(column: Column, name: str, text: str) -> CursorValue:
    try:
        return parse_cursor_value(column, text)
    except ValueError as exc:
        raise RequestRefused(f"`{name}` of the backfill: {exc}", code=BACKFILL) from None


def _refuse_mode(definition: Definition) -> None:
    if definition.mode is not Mode.INCREMENTAL:
        raise RequestRefused(
            f"pipeline '{definition.name}' has no cursor of which a range could be read: its mode is full, and each run"
            " reads everything; run it instead",
            code=BACKFILL,
        )


Watch = Callable[[Sink], Sink]

WORKING = (Status.RUN_REQUESTED, *LEASED)
"""The statuses in which what will be visible, and what was before it, are not known yet."""


def roll_back(
    claim: Claim,
    settings: Settings,
    connection: Connection,
    checkpoint: Checkpoint,
    control: RunControl,
    watch: Watch = lambda sink: sink,
) -> None:
    """Carry out a claimed rollback; RequestRefused if there is nothing to go back to. The source is not needed.

    `watch` may wrap the sink.
    """
    context = history.sink_facts(connection, claim.pipeline_id)
    known = Known(context.installation, context.open_rejects, context.facts)
    sink = watch(
        planner.build_sink(claim.definition, settings, planner.run_info(claim, settings, known), control, known)
    )
    try:
        checkpoint.open("")
        known_generations = load_generation(connection, claim.pipeline_id)
        # guarantee: I15
        if claim.request_id is not None and known_generations.restored_by == claim.request_id:
            return  # an earlier attempt has saved it, and was not ended
        kept = generation_to_restore(sink, known_generations.live, known_generations.previous, checkpoint)
        restore(sink, kept, claim.definition.target_table, checkpoint, control)
    finally:
        sink.close()


def prepare_rollback_check(connection: Connection, settings: Settings, pipeline: Pipeline) -> Callable[[], None]:
    """A function that raises TransitionRefused if a rollback that starts now would find nothing to go back to.

    It asks the target, for a few seconds at most, and needs no connection to the store. Without an answer the request
    is accepted: the runner decides.
    """
    state, known_generations = load_state(connection, pipeline.id), load_generation(connection, pipeline.id)
    if pipeline.status in WORKING or state.generation_open:
        return lambda: None
    known = Known(history.installation_id(connection), (), state.facts)
    run = RunInfo("vitrine:rollback", pipeline.id, known.installation)
    sink = planner.build_sink(pipeline.definition, settings, run, planner.NoLease(), known)
    return lambda: _refuse_in_vain(sink, known_generations.previous, pipeline.definition.target_table)


def _refuse_in_vain(sink: Sink, previous: KeptGeneration | None, target: str) -> None:
    def ask() -> None:
        try:
            kept_load(sink, previous, target)
        finally:
            sink.close()

    try:
        validation.within(validation.PREFLIGHT_SECONDS, ask)
    except RequestRefused as exc:
        raise TransitionRefused(str(exc), code=exc.code) from exc
    except TransientError:
        return
    except TimeoutError:
        sink.cancel()
