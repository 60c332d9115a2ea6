"""Whether a pipeline can read a range of its cursor once more, and the range in the cursor's type."""

from vitrine.engine import cursor_values, plan, validation
from vitrine.engine.cursor_values import CursorValue
from vitrine.engine.plan import Prepared
from vitrine.errors import ConfigError, RequestRefused, TransientError
from vitrine.flow.rows import Column, CursorRange
from vitrine.model import Definition, Mode
from vitrine.settings import Settings

BACKFILL = "BACKFILL"
"""The code of a backfill that the pipeline or its range does not allow."""


def check_request(definition: Definition, settings: Settings, start: str, end: str) -> tuple[str, str]:
    """Both ends in the text format of the cursor's type; ConfigError if it is known that the backfill cannot work.

    The source is asked for a few seconds at most. If it does not answer, the ends are returned as they are: the runner
    decides.
    """
    try:
        _refuse_mode(definition)
        checked = plan.check(definition, settings)
        try:
            found = validation.within(
                validation.PREFLIGHT_SECONDS, lambda: _check_source(plan.prepare(checked), definition, start, end)
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
        return cursor_values.parse(column, text)
    except ValueError as exc:
        raise RequestRefused(f"`{name}` of the backfill: {exc}", code=BACKFILL) from None


def _refuse_mode(definition: Definition) -> None:
    if definition.mode is not Mode.INCREMENTAL:
        raise RequestRefused(
            f"pipeline '{definition.name}' has no cursor of which a range could be read: its mode is full, and each run"
            " reads everything; run it instead",
            code=BACKFILL,
        )
