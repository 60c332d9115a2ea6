"""Commands that show what pipelines can be made of: discover, transforms."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrine.cli import backends, output
from vitrine.cli.arguments import AsJson

if TYPE_CHECKING:
    from vitrine.service.bodies.sources import TableBody


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
    from vitrine import pipeline_files
    from vitrine.errors import ConfigError

    if len(tables) > 1:
        named = ", ".join(one.full_name for one in tables)
        raise ConfigError(f"several tables have this name; give one of them: {named}", code="AMBIGUOUS")
    (table,) = tables
    # a column that only grows with new rows would miss every change
    cursor = next((one.column for one in table.cursors if one.is_modification), None)
    columns = [column.name for column in table.columns]
    starting = pipeline_files.Starting(table.schema_name, table.name, columns, table.key, cursor, source=source)
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
    from vitrine.tables import Lines

    rows = [(one.name, one.kind, Lines("\n".join(one.options)), one.summary, one.origin) for one in found.items]
    output.show_table(("name", "kind", "options", "what it does", "from"), rows, wrap=("options", "what it does"))
