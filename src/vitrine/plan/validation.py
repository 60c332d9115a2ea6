"""Validates a definition against source and target without moving a row, and shows its first rows."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Literal, TypeVar

from vitrine.core.copytext import text_of, values
from vitrine.core.protocols import Limits, Throttle
from vitrine.core.rows import Batch, Column, Finding, Lane, Read, bare_type
from vitrine.definition.model import Definition
from vitrine.errors import ConfigError, TransientError, VitrineError
from vitrine.plan import planner
from vitrine.plan.planner import CheckedDefinition, Prepared
from vitrine.postgres import connect
from vitrine.settings import Settings
from vitrine.store import schedules

Answer = TypeVar("Answer")

PREFLIGHT_SECONDS = 5.0
"""A definition is stored without the answer of a database that takes longer."""

NOT_VALIDATED = "NOT_VALIDATED"
"""The finding about a definition whose source or target could not be asked."""


@dataclass(frozen=True)
class Report:
    """The result of `validate`: how the pipeline would run, with warnings."""

    lane: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    target_exists: bool
    rows_expected: int | None
    findings: tuple[Finding, ...]
    first_due_at: datetime | None = None  # if it were stored now; None: not scheduled, or disabled

    @property
    def warnings(self) -> tuple[str, ...]:
        return warnings_of(self.findings)


def warnings_of(findings: Sequence[Finding]) -> tuple[str, ...]:
    """The sentences of findings that ask for a decision."""
    return tuple(finding.text for finding in findings if not finding.note)


def validate(definition: Definition, settings: Settings) -> Report:
    """Check every rule with the configured connections; VitrineError if the pipeline cannot run."""
    return replace(inspect(planner.check(definition, settings)), first_due_at=_first_due(definition, settings))


def inspect(checked: CheckedDefinition) -> Report:
    """The same without the schedule: only source and target are asked."""
    built = planner.prepare(checked)
    try:
        return Report(
            lane=built.lane,
            columns=built.source.columns,
            key=built.plan.target.key,
            target_exists=built.plan.target.exists,
            rows_expected=built.source.rows_expected,
            findings=tuple(findings_of(checked.definition, built)),
        )
    finally:
        built.close()


def preflight(checked: CheckedDefinition, *, seconds: float = PREFLIGHT_SECONDS) -> tuple[Finding, ...]:
    """Findings about a definition that is about to be stored; ConfigError if no run of it could succeed.

    It is stored without the databases if they do not respond in time: then the only finding says so.
    """
    try:
        return within(seconds, lambda: _find(checked))
    except TimeoutError:
        checked.cancel()
        return (_not_validated(f"source or target did not respond within {seconds:g} s"),)
    except TransientError as exc:
        return (_not_validated(str(exc)),)


def _not_validated(reason: str) -> Finding:
    return Finding(NOT_VALIDATED, f"not validated: {reason}")


def _find(checked: CheckedDefinition) -> tuple[Finding, ...]:
    built = planner.prepare(checked)
    try:
        return tuple(findings_of(checked.definition, built))
    finally:
        built.close()


def within(seconds: float, ask: Callable[[], Answer]) -> Answer:
    """The answer of a database, or TimeoutError; a connection that is being opened cannot be cancelled, so the thread
    that asks is not waited for."""
    found: Future[Answer] = Future()

    def answer() -> None:
        try:
            found.set_result(ask())
        except BaseException as exc:  # noqa: BLE001 – raised again in the thread that waits
            found.set_exception(exc)

    threading.Thread(target=answer, name="preflight", daemon=True).start()
    return found.result(seconds)


def _first_due(definition: Definition, settings: Settings) -> datetime | None:
    with connect(settings.store_url, name="vitrine:validate") as store:
        return schedules.first_due(store, definition, settings.zone)


def findings_of(definition: Definition, built: Prepared) -> list[Finding]:
    """What source and target report about a definition, and what follows from how it reads."""
    found = [*built.plan.target.findings, *built.source.findings, *_of_watermark(built)]
    return [*found, *_of_deletes(definition, built), *planner.notes(definition)]


def _of_deletes(definition: Definition, built: Prepared) -> list[Finding]:
    if not built.plan.incremental or definition.options.delete_mode != "none":
        return []
    text = (
        "rows that are deleted at the source stay in the mart: an incremental run reads only rows that exist; set"
        " options.delete_mode to soft_column or reconcile_keys, or ask for full runs"
    )
    return [Finding("DELETES", text, note=True)]


def _of_watermark(built: Prepared) -> list[Finding]:
    column = built.plan.cursor_column
    if not built.plan.incremental or column is None:
        return []
    try:
        mark = built.plan.source.watermark(column)
    except ConfigError:
        raise  # every run would be refused, not only one that starts now
    except VitrineError as exc:
        return [Finding(exc.code, f"an incremental run would be refused now: {exc}", column)]
    if mark is None or mark.blocker is None:
        return []
    text = f"the checkpoint waits for an open transaction ({mark.blocker}); rows are still written"
    return [Finding("HORIZON_STALLED", text, column)]


MAX_BYTES = 1024 * 1024
"""Size of the rows of a preview, in bytes of their text; a row that would exceed it ends the preview."""

ROWS_FOR_TRANSFORMS = 1000
"""Rows that are read at most where transforms may drop most of them."""

Value = bool | int | str | None

_DECODERS: dict[str, Callable[[str], Value]] = {
    "boolean": lambda text: text == "t",
    "smallint": int,
    "integer": int,
}
"""Types that every JSON reader represents exactly; the values of all others are their text."""


@dataclass(frozen=True)
class Preview:
    """Rows with their columns, and what ended them."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    rows_read: int
    cut: Literal["rows", "size"] | None  # None: there are no more rows


def preview(checked: CheckedDefinition, limit: int) -> Preview:
    """At most `limit` rows after the transforms; reasons against a write do not matter."""
    built = planner.prepare(checked, writes=False)
    try:
        return _first_rows(built, limit)
    finally:
        built.close()


def _first_rows(built: Prepared, limit: int) -> Preview:
    columns: tuple[Column, ...] = () if built.plan.transforms else built.source.columns
    rows: list[tuple[Value, ...]] = []
    size = rows_read = 0
    # one more row than shown, to know whether there are more
    wanted = limit + 1
    for batch, transformed in _batches(built, wanted):
        columns = transformed.columns or columns
        for line in islice(_lines(transformed), wanted - len(rows)):
            size += len(line)
            if len(rows) < limit and size > MAX_BYTES:
                return Preview(columns, tuple(rows), rows_read + batch.count, "size")
            rows.append(_values(line, columns))
        rows_read += batch.count
        if len(rows) >= wanted:
            break
    return Preview(
        columns,
        tuple(rows[:limit]),
        min(rows_read, limit) if not built.plan.transforms else rows_read,
        _cut(rows, limit, rows_read),
    )


def _cut(rows: list[tuple[Value, ...]], limit: int, rows_read: int) -> Literal["rows"] | None:
    return "rows" if len(rows) > limit or rows_read >= ROWS_FOR_TRANSFORMS else None


def _batches(built: Prepared, wanted: int) -> Iterator[tuple[Batch, Batch]]:
    """Batches as they were read, and after the transforms."""
    made = built.plan
    # binary rows have no text
    lane = (
        next(one for one in (Lane.TEXT, *built.source.lanes) if one in built.source.lanes)
        if made.lane is Lane.COPY
        else made.lane
    )
    most = max(wanted, ROWS_FOR_TRANSFORMS) if made.transforms else wanted
    read = Read(lane, made.order, limit=most, skip_null=made.skip_null and made.incremental, complete=True)
    throttle = Throttle(Limits(batch_rows=wanted, batch_bytes=MAX_BYTES))
    for batch in made.source.batches(read, throttle):
        transformed = batch
        for transform in made.transforms:
            transformed = transform(transformed)
        yield batch, transformed


def _lines(batch: Batch) -> Iterator[str]:
    if batch.count:
        yield from bytes(text_of(batch)).decode().split("\n")[:-1]


def _values(line: str, columns: tuple[Column, ...]) -> tuple[Value, ...]:
    fields = line.split("\t")
    return tuple(_value(field, column) for field, column in zip(fields, columns, strict=True))


def _value(field: str, column: Column) -> Value:
    if field == values.NULL:
        return None
    text = values.unescape(field)
    decode = _DECODERS.get(bare_type(column.type)) if not column.inferred else None
    return text if decode is None else decode(text)
