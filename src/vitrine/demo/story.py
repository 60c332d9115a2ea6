"""The demo step by step: fill the sample cinema, build its marts, show them, compare them with their source."""

import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from psycopg import sql
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vitrine.compare import reconcile
from vitrine.core.rows import Counts
from vitrine.definition import files
from vitrine.definition.pipeline import Pipeline
from vitrine.definition.yaml import Document
from vitrine.demo import cinema
from vitrine.embedded import EmbeddedPostgres
from vitrine.errors import ConfigError, TransientError, VitrineError
from vitrine.operations import control, definitions, plans
from vitrine.operations.context import Context, local_caller
from vitrine.postgres import Connection, connect
from vitrine.runner.run import Executed, PipelineDispatcher
from vitrine.settings import Settings, child_environment, chosen_env_file
from vitrine.store import pipelines
from vitrine.store.queue import claim_next
from vitrine.text import green, markup, printable, red, table


def operator(store: Connection, settings: Settings) -> Context:
    """The user of this process, on an open connection, whose transaction the changes join."""
    return Context(settings, local_caller(), lambda: nullcontext(store))


SHOWN_ROWS = 3
SHOWN_WIDTH = 24


@dataclass(frozen=True)
class Built:
    """The pipeline of a mart, and the result of its run."""

    pipeline: Pipeline
    executed: Executed


def sample_documents() -> list[Document]:
    """The sample pipelines, from the YAML files in the package."""
    return files.read_folder(Path(__file__).parent / "pipelines")


def prepare(console: Console, store: Connection, settings: Settings, *, films: int, ratings: int) -> list[Pipeline]:
    """Create the sample cinema and its pipelines where they are missing; return the pipelines."""
    sample = sample_documents()
    if cinema.has_old_layout(store):
        _refuse_foreign(settings)
        console.print(
            "The sample cinema has the layout of an earlier release; it is rebuilt with its marts and pipelines."
        )
        _drop_sample(store, settings, sample)
    cinema.create_schema(store)
    with _filling_bar(console) as watch:
        counts = cinema.fill(store, films=films, ratings=ratings, watch=watch)
    if kept := _larger(counts, films, ratings):
        console.print(f"The existing sample cinema has {kept}; it is kept.")
    console.print(
        f"[green]✓[/] Sample cinema: {counts.film_work:,} films, {counts.person:,} persons,"
        f" {counts.ratings:,} ratings, {counts.likes:,} likes, {counts.views:,} views"
    )
    names = [str(document.fields["name"]) for document in sample]
    known = {pipeline.name for pipeline in pipelines.list_all(store)}
    plans.store_documents(operator(store, settings), store, [one for one in sample if one.fields["name"] not in known])
    console.print(f"[green]✓[/] Pipelines: {markup(', '.join(names))}")
    return [pipelines.get(store, name) for name in names]


def _larger(counts: cinema.Counts, films: int, ratings: int) -> str:
    """What the cinema has more of than was requested; empty if nothing."""
    # views are compared for the ratings: `vitrine up` adds ratings but no views, so their number stays as requested
    sizes = ((counts.film_work, films, "films"), (counts.views, ratings, "ratings"))
    return " and ".join(f"more than {requested:,} {what}" for found, requested, what in sizes if found > requested)


def _refuse_foreign(settings: Settings) -> None:
    """Refuse a database that is not the demo's own: `ugc.ratings` may be a table there that other programs use.

    Neither dropping that table nor renaming its column is safe then, and the database does not record whether
    `vitrine sample` created it.
    """
    if settings.store_url != EmbeddedPostgres(settings.home / "postgres").url():
        raise ConfigError(
            "the table ugc.ratings in this database has no column `rating`, and `vitrine sample` alters no existing"
            " table: use an empty database or, if the table is from an earlier release, run ALTER TABLE ugc.ratings"
            " RENAME COLUMN score TO rating and change the pipelines that read it",
            code="SAMPLE_LAYOUT",
        )


def _drop_sample(store: Connection, settings: Settings, sample: list[Document]) -> None:
    """Drop the cinema, its marts and its pipelines; pipelines and marts of the user stay."""
    known = {pipeline.name for pipeline in pipelines.list_all(store)}
    with store.transaction():
        for document in sample:
            if document.fields["name"] in known:
                # by force: a runner that was killed may still hold a lease
                definitions.delete(operator(store, settings), str(document.fields["name"]), force=True)
            target = sql.Identifier(*str(document.fields["target_table"]).split("."))
            store.execute(sql.SQL("DROP TABLE IF EXISTS {} CASCADE").format(target))
        cinema.drop(store)


@contextmanager
def _filling_bar(console: Console) -> Generator[cinema.Watch]:
    """A progress bar that disappears at the end; without a terminal, nothing."""
    with Progress(
        TextColumn("  Filling the sample cinema: {task.description:<9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        bar = bars.add_task("", total=None)
        yield lambda adding, done, total: bars.update(bar, description=adding, completed=done, total=total)


def build_marts(
    console: Console, store: Connection, settings: Settings, dispatcher: PipelineDispatcher, wanted: list[Pipeline]
) -> list[Built]:
    """Run every pipeline once, each with a progress bar; raise the VitrineError of the first that fails."""
    built: list[Built] = []
    with Progress(
        TextColumn("  {task.description:<22}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as bars:
        for pipeline in wanted:
            bar = bars.add_task(printable(pipeline.name), total=None)

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
        control.run(operator(store, settings), str(pipeline.id))
        claim = claim_next(store, runner="vitrine demo", ttl=settings.lease_ttl, only=pipeline.id)
    if claim is None:
        raise VitrineError(
            f"pipeline '{pipeline.name}' is held by another runner; wait for its run, or stop that runner"
        )
    executed, _ = dispatcher.dispatch(claim, watch=watch, retry=False)
    if executed.error is not None:
        raise executed.error
    return executed


def show_rows(console: Console, store: Connection, built: list[Built]) -> None:
    """Print the first rows of each mart."""
    for one in built:
        target = one.pipeline.definition.target_table
        schema, name = target.split(".")
        statement = sql.SQL("SELECT * FROM {} ORDER BY {} LIMIT {}").format(
            sql.Identifier(schema, name), _first_shown(one.pipeline), SHOWN_ROWS
        )
        rows = store.execute(statement).fetchall()
        _show_sample(console, target, rows)


def _first_shown(pipeline: Pipeline) -> sql.Composable:
    """Films with known titles first; other marts by their key."""
    if pipeline.name == "film_dim_full":
        return sql.SQL("title NOT LIKE 'Star%', film_id")
    return sql.SQL(", ").join(sql.Identifier(name) for name in pipeline.definition.key_columns)


def show_table(
    console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str]
) -> None:
    colours = console.is_terminal and not console.no_color
    console.out(f"\n{table(columns, rows, right=right, title=title, colours=colours)}", highlight=False)


def _show_sample(console: Console, target: str, rows: list[dict[str, Any]]) -> None:
    """As many columns as fit on a line; the title has the number of the others."""
    cells = {name: [_cell(row[name]) for row in rows] for name in (rows[0] if rows else ())}
    shown = _columns_that_fit(cells, console.width)
    more = len(cells) - len(shown)
    title = f"{target}  (+{more} more columns)" if more else target
    numbers = [name for name in shown if isinstance(rows[0][name], int | float | Decimal)]
    show_table(console, title, shown, zip(*(cells[name] for name in shown), strict=True), right=numbers)


def _columns_that_fit(cells: Mapping[str, list[str]], width: int) -> list[str]:
    shown: list[str] = []
    used = 1
    for name, values in cells.items():
        used += max(map(len, [name, *values])) + 2
        if used > width and shown:
            break
        shown.append(name)
    return shown


def _cell(value: Any) -> str:
    """A short text for a terminal: the first characters of an id, a time to the minute, a list with commas."""
    match value:
        case None:
            return ""
        case UUID():
            return f"{str(value)[:8]}…"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M}"
        case list():
            return shorten(", ".join(map(str, value)))  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return shorten(str(value))


def shorten(text: str, width: int = SHOWN_WIDTH) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def show_statistics(console: Console, built: list[Built]) -> None:
    numbers = ("read", "written", "deleted", "seconds", "rows/s")
    show_table(console, "Runs", ("pipeline", "mode", *numbers), map(_statistics, built), right=numbers)


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
    """Compare every mart with its source and print the results; return whether all are equal."""
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
    show_table(console, "Reconcile", ("mart", *numbers, "verdict"), rows, right=numbers)
    return all(comparison.equal for comparison in verdicts.values())


GRACE_SECONDS = 15
POLL_SECONDS = 0.25
NEW_RATINGS_SECONDS = 2.0
NEW_RATINGS = 5
METRICS_PORT = 9464


def serve_demo(
    console: Console, api: Settings, runner: Settings, stop: threading.Event, *, new_ratings: Settings | None = None
) -> None:
    """Run API and runner, each with its own account, until `stop` is set or nothing reads the output any more.

    Then stop them. With `new_ratings`, add ratings to the sample cinema of that database meanwhile.
    """
    settings = api
    port = settings.metrics_port or _free_port(settings.metrics_host)
    children = [Child(api, "api"), Child(runner, "runner", metrics_port=port)]
    try:
        console.print(
            f"\n[bold]Vitrine is up[/]: documentation at http://{markup(settings.api_host)}:{settings.api_port}/docs"
            "  –  press Ctrl-C to stop"
        )
        console.print(
            f"Metrics: http://{markup(settings.api_host)}:{settings.api_port}/metrics for the pipelines,"
            f" http://{markup(settings.metrics_host)}:{port}/metrics for the runner"
        )
        due = time.monotonic() + NEW_RATINGS_SECONDS
        while not stop.wait(POLL_SECONDS) and not output_is_closed():
            _refuse_dead(children)
            if new_ratings is not None and time.monotonic() >= due:
                due = time.monotonic() + NEW_RATINGS_SECONDS
                _add_ratings(new_ratings)
    finally:
        try:
            console.print("Stopping …")
        except (OSError, SystemExit):
            console.quiet = True  # the terminal or the pipe is closed
        finally:
            _end(children)


def output_is_closed() -> bool:
    """Whether the reader of a pipe (`| head`) or the terminal is gone: a write would fail."""
    poll = select.poll()
    poll.register(1, 0)  # errors are always reported
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


class Child:
    """A `vitrine` command in a child process."""

    def __init__(self, settings: Settings, command: str, **overrides: object) -> None:
        self.command = command
        chosen = chosen_env_file()
        options = [] if chosen is None else ["--env-file", str(chosen)]
        # in its own session: Ctrl-C reaches only the parent, which then stops its children
        self.process = subprocess.Popen(  # noqa: S603  no argument comes from the user
            [sys.executable, "-m", "vitrine", *options, command],
            env=child_environment(settings, **overrides),
            start_new_session=True,
        )


def _free_port(host: str) -> int:
    """The default port for metrics, or any free port if another process has it."""
    for port in (METRICS_PORT, 0):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return probe.getsockname()[1]
    return METRICS_PORT


def _refuse_dead(children: Sequence[Child]) -> None:
    for child in children:
        if (code := child.process.poll()) is not None:
            raise VitrineError(f"`vitrine {child.command}` ended with exit code {code}; see its log lines above")


def _add_ratings(settings: Settings) -> None:
    try:
        with connect(settings.store_url, name="vitrine:new-ratings") as connection:
            cinema.add_ratings(connection, NEW_RATINGS)
    except TransientError:
        return  # the database is unavailable for a moment; the next call adds ratings again


def _end(children: Sequence[Child]) -> None:
    for child in children:
        if child.process.poll() is None:
            child.process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for child in children:
        try:
            child.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
