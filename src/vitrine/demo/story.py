"""The demo as a story: what is built, shown and proven, step by step on the terminal."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from importlib.resources import files
from typing import Any
from uuid import UUID

from psycopg import sql
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vitrine import pipeline_files, reconcile, revisions
from vitrine.demo import cinema
from vitrine.errors import VitrineError
from vitrine.flow import Counts
from vitrine.model import Pipeline
from vitrine.postgres import Connection
from vitrine.runner.dispatcher import PipelineDispatcher
from vitrine.runner.executor import Executed
from vitrine.settings import Settings
from vitrine.store import pipelines
from vitrine.store.pipelines import claim_next
from vitrine.tables import green, red, table

SHOWN_ROWS = 3
SHOWN_WIDTH = 24


@dataclass(frozen=True)
class Built:
    """A mart that was built: its pipeline and how the run went."""

    pipeline: Pipeline
    executed: Executed


def sample_documents() -> list[pipeline_files.Document]:
    """The demo's pipelines, as YAML files in the package."""
    folder = files("vitrine.demo").joinpath("pipelines")
    found = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return [(file.name, pipeline_files.parse_text(file.name, file.read_text("utf-8"))) for file in found]


def prepare(console: Console, store: Connection, settings: Settings, *, films: int, ratings: int) -> list[Pipeline]:
    """The sample cinema and its pipelines are there afterwards; what was there before stays."""
    with console.status("Filling the sample cinema …"):
        cinema.create_schema(store)
        counts = cinema.fill(store, films=films, ratings=ratings)
    console.print(
        f"[green]✓[/] Sample cinema: {counts.film_work:,} films, {counts.person:,} persons,"
        f" {counts.ratings:,} ratings, {counts.likes:,} likes, {counts.views:,} views"
    )
    sample = sample_documents()
    names = [str(document["name"]) for _, document in sample]
    known = {pipeline.name for pipeline in pipelines.list_page(store, limit=10_000)}
    revisions.apply_all(store, settings, [entry for entry in sample if entry[1]["name"] not in known], None)
    console.print(f"[green]✓[/] Pipelines: {', '.join(names)}")
    return [pipelines.get(store, name) for name in names]


def build_marts(
    console: Console, store: Connection, settings: Settings, dispatcher: PipelineDispatcher, wanted: list[Pipeline]
) -> list[Built]:
    """Run every pipeline once, with a bar each; VitrineError of the first that fails."""
    built: list[Built] = []
    with Progress(
        TextColumn("  {task.description:<22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as bars:
        for pipeline in wanted:
            bar = bars.add_task(pipeline.name, total=None)

            def watch(counts: Counts, expected: int | None, bar: Any = bar) -> None:
                bars.update(bar, completed=counts.read, total=max(expected, counts.read) if expected else None)

            executed = run_one(store, settings, dispatcher, pipeline, watch)
            bars.update(bar, completed=executed.counts.read, total=executed.counts.read)
            built.append(Built(pipeline, executed))
    return built


def run_one(
    store: Connection, settings: Settings, dispatcher: PipelineDispatcher, pipeline: Pipeline, watch: Any
) -> Executed:
    with store.transaction():
        pipelines.request_run(store, pipeline.id, trigger="cli")
        claim = claim_next(store, runner="vitrine demo", ttl=settings.lease_ttl, only=pipeline.id)
    if claim is None:
        raise VitrineError(f"'{pipeline.name}' is being run by somebody else; wait for it, or stop the other runner")
    executed, _ = dispatcher.dispatch(claim, watch=watch, retry=False)
    if executed.error is not None:
        raise executed.error
    return executed


def show_rows(console: Console, store: Connection, built: list[Built]) -> None:
    """The first rows of each mart."""
    for one in built:
        target = one.pipeline.definition.target_table
        schema, name = target.split(".")
        statement = sql.SQL("SELECT * FROM {} ORDER BY {} LIMIT {}").format(
            sql.Identifier(schema, name), _first_shown(one.pipeline), SHOWN_ROWS
        )
        rows = store.execute(statement).fetchall()
        _show_sample(console, target, rows)


def _first_shown(pipeline: Pipeline) -> sql.Composable:
    """Something worth seeing first: titles under 'Star', otherwise the key."""
    if pipeline.name == "film_dim_full":
        return sql.SQL("title NOT LIKE 'Star%', film_id")
    return sql.SQL(", ").join(sql.Identifier(name) for name in pipeline.definition.key_columns)


def _show_table(
    console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str]
) -> None:
    colours = console.is_terminal and not console.no_color
    console.out(f"\n{table(columns, rows, right=right, title=title, colours=colours)}", highlight=False)


def _show_sample(console: Console, target: str, rows: list[dict[str, Any]]) -> None:
    """As many columns as fit on a line; the title has the number of the others."""
    cells = {name: [_cell(row[name]) for row in rows] for name in (rows[0] if rows else ())}
    shown = _fitting(cells, console.width)
    more = len(cells) - len(shown)
    title = f"{target}  (+{more} more columns)" if more else target
    numbers = [name for name in shown if isinstance(rows[0][name], int | float | Decimal)]
    _show_table(console, title, shown, zip(*(cells[name] for name in shown), strict=True), right=numbers)


def _fitting(cells: Mapping[str, list[str]], width: int) -> list[str]:
    shown: list[str] = []
    used = 1
    for name, values in cells.items():
        used += max(map(len, [name, *values])) + 2
        if used > width and shown:
            break
        shown.append(name)
    return shown


def _cell(value: Any) -> str:
    """A value short enough for a terminal: the head of an id, a time to the minute, a list as words."""
    match value:
        case None:
            return ""
        case UUID():
            return f"{str(value)[:8]}…"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M}"
        case list():
            return _shortened(", ".join(map(str, value)))  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return _shortened(str(value))


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_WIDTH else f"{text[: SHOWN_WIDTH - 1]}…"


def show_statistics(console: Console, built: list[Built]) -> None:
    numbers = ("rows read", "written", "deleted", "seconds", "rows/s")
    _show_table(console, "Runs", ("pipeline", "mode", *numbers), map(_statistics, built), right=numbers)


def _statistics(one: Built) -> tuple[str, ...]:
    counts, seconds = one.executed.counts, one.executed.seconds
    return (
        one.pipeline.name,
        one.pipeline.definition.mode,
        f"{counts.read:,}",
        f"{counts.written:,}",
        f"{counts.deleted:,}",
        f"{seconds:.2f}",
        f"{counts.read / seconds:,.0f}" if seconds else "",
    )


def prove(console: Console, settings: Settings, built: list[Built]) -> bool:
    """Compare every mart with its source; whether all are equal."""
    verdicts = {
        one.pipeline.definition.target_table: reconcile.compare(one.pipeline.definition, settings) for one in built
    }
    numbers = ("rows in source", "rows in target")
    rows = [
        (
            target,
            f"{comparison.source.rows:,}",
            f"{comparison.target.rows:,}",
            (green if comparison.equal else red)(comparison.sentence()),
        )
        for target, comparison in verdicts.items()
    ]
    _show_table(console, "Reconcile", ("mart", *numbers, "verdict"), rows, right=numbers)
    return all(comparison.equal for comparison in verdicts.values())
