"""The command that shows why one row of a mart is as it is: trace."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from vitrine.cli import backends, exit_codes, output
from vitrine.cli.arguments import AsJson, Name

if TYPE_CHECKING:
    from vitrine.service.bodies.tracing import Shown, TraceBody

NO_VALUE = "–"
"""Shown where a side has no such row or column; NULL is a value."""


def trace(
    name: Name,
    key: Annotated[
        list[str],
        typer.Argument(help="Key of the row; of several columns, one value for each, in order.", show_default=False),
    ],
    resend: Annotated[
        bool, typer.Option("--resend", help="First read this key again and write it; the checkpoint stays.")
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="With --resend: delete the key if the source does not have it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show why a row of a mart is as it is.

    The row at the source, what each transform makes of it, and the row or document in the target; then where it stands,
    and the remedy. Exit code 0 equal, 2 not. With --resend, exit code 1 failed, 3 interrupted.
    """
    if delete and not resend:
        raise typer.BadParameter("--delete needs --resend: nothing else writes")
    if resend:
        _resend(name, key, delete=delete, quiet=as_json)
    with backends.opened() as backend:
        found = backend.checks.trace(name, key)
    if as_json:
        output.show_body(found)
    else:
        _show(found)
    sys.exit(exit_codes.DONE if found.standing == "equal" else exit_codes.DIFFERENT)


def _resend(name: str, key: list[str], *, delete: bool, quiet: bool) -> None:
    from vitrine.cli import carrying_out
    from vitrine.service.bodies.tracing import ResendBody, ResentBody

    body = ResendBody(key=key, delete=delete)
    run = carrying_out.ended_run(name, "resend", lambda control: control.resend(name, body), quiet=quiet)
    done = ResentBody.model_validate(run.result, from_attributes=True)
    if not quiet:
        output.show(f"{name}: {done.resent} row(s) sent again, {done.deleted} deleted")


def _show(found: "TraceBody") -> None:
    from vitrine.flow import keys
    from vitrine.tables import red

    output.show(f"{found.pipeline}: key {keys.shown(found.key)} is {found.standing}")
    sides = ["source", *(step.transform for step in found.steps), found.target]
    rows = [found.source, *(step.rows for step in found.steps), found.target_rows]
    table: list[list[str]] = []
    for column in found.columns:
        cells = [_cell(side, column.name) for side in rows]
        if column.differs:
            cells[-1] = red(f"{cells[-1]} ≠")
        table.append([column.name, *cells])
    if table:
        output.show_table(["column", *sides], table, wrap=sides)
    for side, some in zip(sides, rows, strict=True):
        if len(some) > 1:
            output.show_wrapped(f"{side} has {len(some)} rows of this key; the first is shown, --json has all", "  ")
    if found.cursor and found.checkpoint:
        shown = " / ".join("NULL" if text is None else text for text in found.cursor)
        output.show_wrapped(f"cursor: {shown}; checkpoint: {' / '.join(found.checkpoint)}", "  ")
    if found.not_compared:
        output.show_wrapped(f"compared by texts only: {found.not_compared}", "  ")
    output.show_wrapped(f"{found.pipeline}: {found.sentence}", "  ")
    if found.remedy:
        output.show_wrapped(f"remedy: {found.remedy}", "  ")
    if found.waiting and found.standing != "blocked":
        output.show_wrapped(f"pipeline: {found.waiting}", "  ")


def _cell(rows: "list[Shown]", column: str) -> str:
    if not rows or column not in rows[0]:
        return NO_VALUE
    text = rows[0][column]
    return "NULL" if text is None else text
