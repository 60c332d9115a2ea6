"""The command that lists pipelines: list."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeVar

import typer

from vitrine.cli import backends, output
from vitrine.cli.arguments import AsJson

if TYPE_CHECKING:
    from vitrine.service.bodies.pipelines import InvalidPipelineBody, ListedPipelineBody, PipelinePage
    from vitrine.settings import Settings

NUMBERS = ("rows", "seconds")
GROUPS = ("promise", "late", "verdict", "owner", "tags")
WIDE_ONLY = ("promise", "late", "mode", "target", "schedule", "verdict", "owner", "tags")

Shown = TypeVar("Shown")


def list_all(
    stale: Annotated[
        bool, typer.Option("--stale", help="Only marts that are older than their freshness or schedule allows.")
    ] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Only pipelines whose last run failed.")] = False,
    status: Annotated[
        list[str] | None,
        typer.Option(help="Only pipelines in this status, such as RUNNING; can be repeated.", show_default=False),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only pipelines with this tag.", show_default=False)] = None,
    owner: Annotated[str | None, typer.Option(help="Only pipelines of this owner.", show_default=False)] = None,
    target: Annotated[
        str | None, typer.Option(help="Only this target; with * at the end, all that begin so.", show_default=False)
    ] = None,
    sort: Annotated[
        Literal["name", "age"] | None,
        typer.Option(
            help="age: the oldest mart first. Default: name; with --stale or --failed, age.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List pipelines with status, age of the mart and last run."""
    from vitrine.service.bodies.pipelines import PipelinePage

    by_age = (sort or ("age" if stale or failed else "name")) == "age"
    with backends.opened() as backend:
        pages = backend.definitions.pages(_filters(stale, failed, status, tag, owner, target))
        if as_json:
            texts, invalid = _rendered(pages, output.json_text, by_age=by_age)
            output.show_page(PipelinePage(items=[], invalid=invalid, next=None), texts)
        else:
            _show(*_rendered(pages, _rendering(backend.settings), by_age=by_age))


def _rendered(
    pages: "Iterable[PipelinePage]", render: "Callable[[ListedPipelineBody], Shown]", *, by_age: bool
) -> "tuple[list[Shown], list[InvalidPipelineBody]]":
    """What is shown of each pipeline, and those that are not valid; the bodies of a page are not kept."""
    invalid: list[InvalidPipelineBody] = []
    found: list[tuple[datetime | None, Shown]] = []
    for page in pages:
        invalid += page.invalid
        found += [(one.fresh_as_of, render(one)) for one in page.items]
    if by_age:
        found.sort(key=lambda one: one[0] or datetime.min.replace(tzinfo=UTC))
    return [shown for _, shown in found], invalid


def _filters(
    stale: bool, failed: bool, status: list[str] | None, tag: str | None, owner: str | None, target: str | None
):
    from pydantic import ValidationError

    from vitrine import input_errors
    from vitrine.service.bodies.filters import Filters

    given = {
        "stale": stale or None,
        "failed": failed or None,
        "status": [one.upper() for one in status] if status else None,
        "tag": tag,
        "owner": owner,
        "target": target,
    }
    try:
        return Filters.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as exc:
        first, *_ = input_errors.explain(exc.errors(), Filters)
        raise typer.BadParameter(f"--{first.sentence}") from None


class Line(NamedTuple):
    """What the table shows of a pipeline."""

    cells: dict[str, str]  # by column
    error: str | None  # why its last run failed
    late: str | None  # why its mart is late


def _show(found: Sequence[Line], invalid: "Sequence[InvalidPipelineBody]") -> None:
    if found:
        left_out = {column for column in WIDE_ONLY if not output.is_wide()}
        left_out |= {column for column in GROUPS if not any(line.cells[column] for line in found)}
        columns = [column for column in found[0].cells if column not in left_out]
        rows = ([line.cells[column] for column in columns] for line in found)
        output.show_table(columns, rows, right=("age", *NUMBERS), wrap=("pipeline",))
    elif not invalid:
        output.show("No pipeline.")
    for sentence in (sentence for line in found for sentence in (line.late, line.error) if sentence):
        output.show_wrapped(sentence, "  ")
    for one in invalid:
        text = f"{one.name}: the stored definition is not valid: {one.reason} [DEFINITION_INVALID]"
        output.show_wrapped(text, "  ")


def _rendering(settings: "Settings") -> "Callable[[ListedPipelineBody], Line]":
    from vitrine.tables import red

    now = datetime.now(UTC)

    def render(one: "ListedPipelineBody") -> Line:
        run, error, age = one.last_run, one.last_error, output.age(one.fresh_as_of, now)
        cells = {
            "pipeline": one.name,
            "status": red(_status(one)) if one.status == "FAILED" else _status(one),
            "age": red(f"{age} !") if one.stale else age,
            "promise": _promise(one),
            "late": one.late_cause or "",
            "verdict": _verdict(one),
            "mode": str(one.mode),
            "target": one.target_table,
            "schedule": _schedule(one),
            "next due": _due(one, settings),
            "last run": str(run.status) if run else "never",
            "rows": f"{run.rows_read:,}" if run else "",
            "seconds": f"{run.seconds:.2f}" if run and run.seconds is not None else "",
            "owner": one.owner,
            "tags": ", ".join(one.tags),
        }
        failure = f"{one.name}: {error.message} [{error.code}]" if error else None
        return Line(cells, failure, f"{one.name} is late: {one.late_reason}" if one.late_reason else None)

    return render


def _schedule(one: "ListedPipelineBody") -> str:
    """What starts its runs."""
    after = f"after {', '.join(one.after)}" if one.after else ""
    return ", ".join(filter(None, (one.schedule_interval, after)))


def _due(one: "ListedPipelineBody", settings: "Settings") -> str:
    from vitrine.status import HALTED

    if one.next_due_at is None or one.status in HALTED:
        return ""
    return f"{one.next_due_at.astimezone(settings.zone):%m-%d %H:%M}"


def _promise(one: "ListedPipelineBody") -> str:
    """How old the mart may be."""
    from vitrine.model import format_duration

    freshness = one.options.freshness
    if freshness is not None:
        return format_duration(freshness)
    return f"2 × {one.schedule_interval}" if one.schedule_interval else ""


def _verdict(one: "ListedPipelineBody") -> str:
    from vitrine.tables import red

    return red(one.verdict) if one.verdict == "different" else one.verdict or ""


def _status(one: "ListedPipelineBody") -> str:
    if not one.enabled:
        return f"{one.status} (disabled)"
    return f"{one.status} (postponed)" if one.postponed and one.status == "IDLE" else str(one.status)
