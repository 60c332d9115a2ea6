"""Commands that ask source and target and change nothing: validate, preview."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrine.cli import backends, exit_codes, output
from vitrine.cli.arguments import AsJson, Env, NameOrFile

if TYPE_CHECKING:
    from vitrine.errors import VitrineError
    from vitrine.model import Definition
    from vitrine.service.bodies.checks import ReportBody
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
