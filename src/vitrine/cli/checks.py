"""Commands that ask source and target and change nothing: validate, preview, discover, transforms."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrine.cli import backends, exit_codes, output
from vitrine.cli.arguments import AsJson, Env, NameOrFile

if TYPE_CHECKING:
    from vitrine.definition.model import Definition
    from vitrine.errors import VitrineError
    from vitrine.operations.bodies.checks import ReportBody
    from vitrine.operations.bodies.overview import TableBody
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
    from vitrine.definition import files, yaml

    (document,) = files.read_folder(Path(what), yaml.read_variables(env) if env else None)
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


def discover(
    table: Annotated[
        str | None, typer.Argument(help="Only this table, such as film_work or content.film_work.", show_default=False)
    ] = None,
    source: Annotated[str, typer.Option(help="Name of a configured source.")] = "default",
    schema: Annotated[str | None, typer.Option(help="Only tables of this schema.", show_default=False)] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            help="Write a first YAML file for the table; an existing file is kept.", metavar="FILE", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the tables that can be read, with keys and cursors.

    --write makes a first YAML file of a table.
    """
    from vitrine.errors import NotFound

    if write is not None and table is None:
        raise typer.BadParameter("--write needs the name of a table")
    if write is not None and write.suffix not in (".yaml", ".yml"):
        raise typer.BadParameter(f"--write: '{write}' does not end with .yaml, and `vitrine apply` would not read it")
    wanted, name = _split(table)
    with backends.opened() as backend:
        page = backend.sources.tables(source, schema=wanted or schema, table=name)
    if table is not None and not page.items:
        raise NotFound(f"source '{source}' has no table '{table}' that can be read; `vitrine discover` lists all")
    if as_json:
        output.show_body(page)
    if write is not None:
        _write(page.items, source, write, quiet=as_json)
    elif not as_json:
        _show(page.items, source, detailed=table is not None)


def _split(table: str | None) -> tuple[str | None, str | None]:
    if table is None or "." not in table:
        return None, table
    schema, _, name = table.partition(".")
    return schema, name


def _show(tables: "list[TableBody]", source: str, *, detailed: bool) -> None:
    if not tables:
        output.show(
            f"Source '{source}' has no table that can be read. `vitrine doctor` says which schemas and rights it has."
        )
        return
    rows = [
        (
            one.full_name if one.kind == "table" else f"{one.full_name} ({one.kind})",
            "?" if one.rows is None else f"{one.rows:,}",
            ", ".join(one.key) or "none",
            one.cursors[0].column if one.cursors else "none",
        )
        for one in tables
    ]
    output.show_table(("table", "rows", "key", "cursor"), rows, right=("rows",), wrap=("table", "key", "cursor"))
    if detailed:
        for one in tables:
            _show_details(one)


def _show_details(table: "TableBody") -> None:
    output.show("")
    columns = [(column.name, column.type, "" if column.nullable else "NOT NULL") for column in table.columns]
    output.show_table(("column", "type", ""), columns)
    output.show("")
    for one in table.cursors:
        output.show_wrapped(f"cursor candidate {one.column}: {', '.join(one.reasons)}", "  ")
    output.show("A first pipeline:")
    output.show(f"  vitrine discover {table.full_name} --write pipelines/{table.name}.yaml")


def _write(tables: "list[TableBody]", source: str, file: Path, *, quiet: bool) -> None:
    from vitrine.definition import files
    from vitrine.errors import ConfigError

    if len(tables) > 1:
        named = ", ".join(one.full_name for one in tables)
        raise ConfigError(f"several tables have this name; give one of them: {named}", code="AMBIGUOUS")
    (table,) = tables
    # a column that only grows with new rows would miss every change
    cursor = next((one.column for one in table.cursors if one.is_modification), None)
    columns = [column.name for column in table.columns]
    starting = files.Starting(table.schema_name, table.name, columns, table.key, cursor, source=source)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as opened:
            opened.write(starting.text())
    except FileExistsError:
        raise ConfigError(f"'{file}' exists already and is kept; give another name", code="FILE_EXISTS") from None
    except OSError as exc:
        raise ConfigError(f"cannot write '{file}': {exc.strerror}", code="NO_FILE") from exc
    if quiet:
        return
    output.show(
        f"{file}: pipeline {starting.name}, {'incremental by ' + starting.cursor if starting.cursor else 'full'}"
    )
    if not table.key:
        output.show("The table has no primary key: set key_columns in the file first.")
    output.show(f"Next: vitrine validate {file}, then vitrine apply {file} and vitrine run {starting.name}")


def transforms(as_json: AsJson = False) -> None:
    """List the installed Python tasks with their options.

    Transforms of rows and of frames, and readers.
    """
    with backends.opened() as backend:
        found = backend.sources.transforms()
    if as_json:
        output.show_body(found)
        return
    from vitrine.text import Lines

    rows = [(one.name, one.kind, Lines("\n".join(one.options)), one.summary, one.origin) for one in found.items]
    output.show_table(("name", "kind", "options", "what it does", "from"), rows, wrap=("options", "what it does"))
