"""The command that lists pipelines: list."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vitrine.cli import backends, output
from vitrine.cli.arguments import AsJson

if TYPE_CHECKING:
    from vitrine.service.bodies.pipelines import ListedPipelineBody
    from vitrine.settings import Settings

NUMBERS = ("rows", "seconds")


def list_all(
    stale: Annotated[
        bool, typer.Option("--stale", help="Only marts that are older than their schedule allows.")
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

    with backends.opened() as backend:
        found = list(backend.definitions.list_all(_filters(stale, failed, status, tag, owner, target)))
    now = datetime.now(UTC)
    if (sort or ("age" if stale or failed else "name")) == "age":
        found.sort(key=lambda one: one.fresh_as_of or datetime.min.replace(tzinfo=UTC))
    if as_json:
        output.show_body(PipelinePage(items=found, next=None))
        return
    _show(found, backend.settings, now)


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


def _show(found: "list[ListedPipelineBody]", settings: "Settings", now: datetime) -> None:
    if not found:
        output.show("No pipeline.")
        return
    wide = output.is_wide()
    grouped = wide and any(one.owner or one.tags for one in found)
    judged = wide and any(one.verdict for one in found)
    columns = (
        "pipeline",
        "status",
        "age",
        *(("verdict",) if judged else ()),
        *(("mode", "target", "schedule") if wide else ()),
        "next due",
        "last run",
        *NUMBERS,
        *(("owner", "tags") if grouped else ()),
    )
    rows = [_row(one, settings, now, wide=wide, grouped=grouped, judged=judged) for one in found]
    output.show_table(columns, rows, right=("age", *NUMBERS), wrap=("pipeline",))
    for one in found:
        if one.last_error:
            output.show_wrapped(f"{one.name}: {one.last_error.message} [{one.last_error.code}]", "  ")


def _row(
    one: "ListedPipelineBody", settings: "Settings", now: datetime, *, wide: bool, grouped: bool, judged: bool
) -> tuple[str, ...]:
    from vitrine.tables import red

    run = one.last_run
    age = output.age(one.fresh_as_of, now)
    return (
        one.name,
        red(_status(one)) if one.status == "FAILED" else _status(one),
        red(f"{age} !") if one.stale else age,
        *((_verdict(one),) if judged else ()),
        *((one.mode, one.target_table, one.schedule_interval or "") if wide else ()),
        f"{one.next_due_at.astimezone(settings.zone):%m-%d %H:%M}" if one.next_due_at else "",
        str(run.status) if run else "never",
        f"{run.rows_read:,}" if run else "",
        f"{run.seconds:.2f}" if run and run.seconds is not None else "",
        *((one.owner, ", ".join(one.tags)) if grouped else ()),
    )


def _verdict(one: "ListedPipelineBody") -> str:
    from vitrine.tables import red

    return red(one.verdict) if one.verdict == "different" else one.verdict or ""


def _status(one: "ListedPipelineBody") -> str:
    if not one.enabled:
        return f"{one.status} (disabled)"
    return f"{one.status} (postponed)" if one.postponed and one.status == "IDLE" else str(one.status)
