"""Commands that ask source and target and change nothing: validate, preview, reconcile, rejects."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrine.cli import backends, exit_codes, output
from vitrine.cli.arguments import AsJson, Env, Name, NameOrFile

if TYPE_CHECKING:
    from vitrine.errors import VitrineError
    from vitrine.model import Definition
    from vitrine.service.bodies.checks import ComparisonBody, ReportBody
    from vitrine.settings import Settings


def validate(what: NameOrFile, env: Env = None, as_json: AsJson = False) -> None:
    """Check a pipeline against source and target.

    No row is moved. Exit code 0 ready to run, 1 not.
    """
    from vitrine.errors import VitrineError

    subject = _subject(what, env)
    with backends.opened() as backend:
        try:
            report = backend.checks.validate(subject)
        except VitrineError as exc:
            if not as_json:
                raise
            output.show_json(_refusal(subject if isinstance(subject, str) else subject.name, exc))
            sys.exit(exit_codes.FAILED)
    if as_json:
        output.show_body(report)
    else:
        _show_report(report, backend.settings)


def _subject(what: str, env: Path | None) -> "str | Definition":
    """The definition of a YAML file, or the name of a stored pipeline."""
    if Path(what).suffix not in (".yaml", ".yml"):
        return what
    from vitrine import pipeline_files

    (document,) = pipeline_files.read_folder(Path(what), pipeline_files.read_variables(env) if env else None)
    return document.valid_definition()


def _refusal(name: str, exc: "VitrineError") -> dict[str, object]:
    place = asdict(exc.place) if exc.place else None
    return {"name": name, "ready": False, "error": {"code": exc.code, "text": str(exc), "place": place}}


def _show_report(report: "ReportBody", settings: "Settings") -> None:
    output.show(f"{report.name} → {report.target}, {report.mode}, lane {report.lane}")
    output.show_wrapped("columns: " + ", ".join(f"{column.name} {column.type}" for column in report.columns), "  ")
    output.show(f"key: {', '.join(report.key)}" + ("" if report.target_exists else " (the target will be created)"))
    if report.rows_expected is not None:
        output.show(f"about {report.rows_expected:,} rows")
    if report.first_due_at is not None:
        output.show(f"schedule: due at {output.local_time(report.first_due_at, settings)}")
    for finding in report.findings:
        output.show_wrapped(f"{'note' if finding.note else 'warning'}: {finding.text} [{finding.code}]", "  ")
        if finding.place is not None:
            output.show_lines(finding.place.place.excerpt())


def preview(
    what: NameOrFile,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100, help="How many rows.")] = 10,
    env: Env = None,
    as_json: AsJson = False,
) -> None:
    """Show the first rows of a pipeline after its transforms.

    Nothing is written.
    """
    subject = _subject(what, env)
    with backends.opened() as backend:
        found = backend.checks.preview(subject, limit=limit)
    if as_json:
        output.show_body(found)
        return
    columns = [column.name for column in found.columns]
    rows = [["NULL" if value is None else str(value) for value in row] for row in found.rows]
    if output.fits(columns, rows):
        output.show_table(columns, rows)
    else:
        _show_records(columns, rows)
    if not rows:
        output.show("no rows")
    if found.cut == "size":
        output.show("more rows would exceed the size of a preview")


def _show_records(columns: list[str], rows: list[list[str]]) -> None:
    """One value per line: a table of many columns is not readable in a narrow terminal."""
    width = max(map(len, columns))
    for number, row in enumerate(rows, 1):
        output.show(f"row {number}")
        for column, value in zip(columns, row, strict=True):
            output.show_wrapped(f"  {column:<{width}}  {value}", " " * (width + 4))


def reconcile(
    name: Name,
    quick: Annotated[
        bool, typer.Option("--quick", help="Compare only the number of rows and the control column, not every value.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare a mart with its source.

    What is left out is named. Exit code 0 equal, 2 different. With --api, a runner compares every value; --quick is
    answered by the API itself.
    """
    with backends.opened() as backend:
        comparison = backend.checks.compare(name, quick=quick)
    if as_json:
        output.show_body(comparison)
    else:
        _show_comparison(name, comparison)
    sys.exit(exit_codes.DONE if comparison.equal else exit_codes.DIFFERENT)


def _show_comparison(name: str, comparison: "ComparisonBody") -> None:
    from vitrine.tables import red

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


def rejects(
    name: Name,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=200, help="How many rows, oldest first.")] = 100,
    rows: Annotated[bool, typer.Option("--rows", help="With --json: the rejected rows themselves as well.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the rows in quarantine, with the reasons."""
    if rows and not as_json:
        raise typer.BadParameter("--rows needs --json")
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
