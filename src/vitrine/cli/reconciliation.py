"""Commands that compare a mart with its source and correct it: reconcile, rejects, trace."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from vitrine.cli import backends, exit_codes, output, requests
from vitrine.cli.arguments import AsJson, Name

if TYPE_CHECKING:
    from vitrine.operations.bodies.checks import ComparisonBody, Shown, TraceBody
    from vitrine.operations.bodies.pipelines import KeysBody, ReconciliationBody

KEYS_SHOWN = 20


def reconcile(
    name: Name,
    quick: Annotated[
        bool, typer.Option("--quick", help="Compare only the number of rows and the control column, not every value.")
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Find the keys that differ, under the lease, and keep the report.")
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="The same, then write missing and different keys again, delete extra ones, and compare them again.",
        ),
    ] = False,
    allow_shrink: Annotated[
        bool, typer.Option("--allow-shrink", help="Allow this repair to delete more than max_delete_ratio of the mart.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare a mart with its source, and repair it.

    What is left out is named. Exit code 0 equal, 2 different, 3 interrupted. With --api, a runner compares every value;
    --quick is answered by the API itself. --deep and --repair are carried out by the first runner that is free, or by
    this process.
    """
    if quick and (deep or repair):
        raise typer.BadParameter("--quick compares figures only: give it without --deep and --repair")
    if allow_shrink and not repair:
        raise typer.BadParameter("--allow-shrink needs --repair: nothing else deletes")
    if deep or repair:
        _reconcile_deep(name, repair=repair, allow_shrink=allow_shrink, as_json=as_json)
    with backends.opened() as backend:
        comparison = backend.checks.compare(name, quick=quick)
    if as_json:
        output.show_body(comparison)
    else:
        _show_comparison(name, comparison)
    sys.exit(exit_codes.DONE if comparison.equal else exit_codes.DIFFERENT)


def _reconcile_deep(name: str, *, repair: bool, allow_shrink: bool, as_json: bool) -> None:
    """Ends the command."""
    from vitrine.operations.bodies.pipelines import ReconcileBody, ReconciliationBody

    body = ReconcileBody(deep=True, repair=repair, allow_shrink=allow_shrink)
    work = "repair" if repair else "comparison"
    run = requests.ended_run(name, work, lambda control: control.reconcile(name, body), quiet=as_json)
    found = ReconciliationBody.model_validate(run.result)
    if as_json:
        output.show_body(found)
    else:
        _show_reconciliation(name, found)
    sys.exit(exit_codes.DONE if found.equal else exit_codes.DIFFERENT)


def _show_comparison(name: str, comparison: "ComparisonBody") -> None:
    from vitrine.text import red

    fields = {
        "rows": "rows",
        "lowest": f"lowest {comparison.control}",
        "highest": f"highest {comparison.control}",
        "hash": f"hash over {len(comparison.columns)} column(s)",
    }
    rows: list[tuple[str, str, str]] = []
    for field, label in fields.items():
        source, target = getattr(comparison.source, field), getattr(comparison.target, field)
        rows.append((label, str(source), str(target) if source == target else red(target)))
    output.show_table(("", "source", "target"), rows, wrap=("source", "target"))
    for sentence in comparison.left_out:
        output.show_wrapped(f"left out: {sentence}", "  ")
    output.show_wrapped(f"{name}: {comparison.sentence}", "  ")


def _show_reconciliation(name: str, found: "ReconciliationBody") -> None:
    rows = [
        *(_rows("missing", found.missing, "only the source has it")),
        *(_rows("extra", found.extra, "only the mart has it")),
        *(
            ("different", key, ", ".join(found.different.columns.get(key, ())))
            for key in found.different.keys[:KEYS_SHOWN]
        ),
    ]
    if rows:
        output.show_table(("difference", "key", "columns"), rows, wrap=("key", "columns"))
    for kind in (found.missing, found.extra, found.different):
        if kind.count > KEYS_SHOWN:
            output.show(f"{kind.count - KEYS_SHOWN} more are not shown; --json names up to {len(kind.keys)}")
    for sentence in found.left_out:
        output.show_wrapped(f"left out: {sentence}", "  ")
    output.show_wrapped(f"{name}: {found.sentence} ({found.source_rows:,} rows)", "  ")


def _rows(kind: str, found: "KeysBody", meaning: str) -> list[tuple[str, str, str]]:
    return [(kind, key, meaning) for key in found.keys[:KEYS_SHOWN]]


def rejects(
    name: Name,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=200, help="How many rows, oldest first.")] = 100,
    rows: Annotated[bool, typer.Option("--rows", help="With --json: the rejected rows themselves as well.")] = False,
    replay: Annotated[
        bool, typer.Option("--replay", help="Read the keys in quarantine again and write the rows that fit now.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the rows in quarantine, with the reasons.

    With --replay, a runner, or this process, reads and writes them again first; exit code 1 failed, 3 interrupted.
    """
    if rows and not as_json:
        raise typer.BadParameter("--rows needs --json")
    if replay:
        _replay(name, quiet=as_json)
    with backends.opened() as backend:
        page = backend.checks.rejects(name, limit=limit, with_rows=rows)
    if as_json:
        output.show_body(page)
        return
    if not page.items:
        output.show(f"{name}: no row is in quarantine")
        return
    shown = [
        (one.key, one.column or "", one.code, one.reason, str(one.run_id), f"{one.created_at:%Y-%m-%d %H:%M:%S}")
        for one in page.items
    ]
    output.show_table(("key", "column", "code", "reason", "run", "since"), shown, wrap=("key", "column", "reason"))
    if page.next is not None:
        output.show("there are more; --limit shows up to 200, and the API all of them")


def _replay(name: str, *, quiet: bool) -> None:
    run = requests.ended_run(name, "replay", lambda control: control.replay_rejects(name), quiet=quiet)
    if not quiet:
        output.show(f"{name}: {run.rows_read:,} row(s) read again, {run.rows_written:,} written")


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
    from vitrine.operations.bodies.checks import ResendBody, ResentBody

    body = ResendBody(key=key, delete=delete)
    run = requests.ended_run(name, "resend", lambda control: control.resend(name, body), quiet=quiet)
    done = ResentBody.model_validate(run.result, from_attributes=True)
    if not quiet:
        output.show(f"{name}: {done.resent} row(s) sent again, {done.deleted} deleted")


def _show(found: "TraceBody") -> None:
    from vitrine.core import keys
    from vitrine.text import red

    output.show(f"{found.pipeline}: key {keys.shown_key(found.key)} is {found.standing}")
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
