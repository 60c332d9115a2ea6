"""The command `vitrine`: the only place that builds things."""

import atexit
import gc
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

# Heavy modules are imported inside the commands, so that `vitrine --help` answers at once.
if TYPE_CHECKING:
    import threading
    from datetime import datetime

    from rich.console import Console

    from vitrine.flow import Counts
    from vitrine.postgres import Connection
    from vitrine.runner.dispatcher import PipelineDispatcher
    from vitrine.runner.executor import Executed
    from vitrine.settings import Settings

WIDE = 120
"""From here on a terminal has room for every column of a table."""

FAILED, DIFFERENT, PAUSED, HELD = 1, 2, 3, 4

app = typer.Typer(
    help="Builds and keeps analytical marts: SQL in, registered transforms between, a right mart out.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Name = Annotated[str, typer.Argument(help="Name or id of the pipeline.", show_default=False)]
Films = Annotated[int, typer.Option(min=30, max=2_000_000, help="Films in the sample cinema.")]
Ratings = Annotated[int, typer.Option(min=100, max=50_000_000, help="Ratings in the sample cinema.")]


def main() -> None:
    """Run the command line; every known error is one sentence on stderr and exit code 1."""
    from vitrine.errors import VitrineError

    # a fifth of the time a short command takes: at its end Python looks through every module once more
    atexit.register(gc.freeze)
    try:
        app()
    except VitrineError as exc:
        _stop(str(exc))
    except KeyboardInterrupt:
        sys.exit(130)


def _stop(text: str, code: int = FAILED) -> NoReturn:
    sys.stderr.write(f"vitrine: {text}\n")
    sys.exit(code)


# -- trying it out ----------------------------------------------------------------------------------------------------


@app.command()
def demo(films: Films = 1000, ratings: Ratings = 20_000) -> None:
    """Build the sample marts on an embedded PostgreSQL, show them, prove them; leaves nothing running."""
    console = _console()
    settings = _settings()
    with _embedded(console, settings) as url:
        equal = _build_sample(console, _settings(database_url=url), films, ratings)
    console.print(
        f"\nThe data is kept in {settings.home}/. Next: `make serve`, then http://127.0.0.1:{settings.api_port}"
    )
    sys.exit(0 if equal else DIFFERENT)


@app.command()
def up(films: Films = 1000, ratings: Ratings = 20_000) -> None:
    """The demo, and stay up: API, a runner, and a trickle of new ratings; Ctrl-C stops everything."""
    from vitrine.api import server
    from vitrine.demo import serving

    console = _console()
    settings = _settings()
    server.listen(settings.api_host, settings.api_port).close()
    if settings.database_url is not None:
        from vitrine.store.migrate import migrate

        migrate(settings.store_url)
        serving.serve(console, settings, trickle=False)
        return
    with _embedded(console, settings) as url:
        own = _settings(database_url=url)
        _build_sample(console, own, films, ratings)
        serving.serve(console, own, trickle=True)


@app.command()
def sample(films: Films = 1000, ratings: Ratings = 20_000) -> None:
    """Put the sample cinema (schemas content and ugc) and its pipelines into the configured database."""
    from vitrine.demo import story

    settings = _settings()
    with _store(settings) as store:
        story.prepare(_console(), store, settings, films=films, ratings=ratings)


def _build_sample(console: "Console", settings: "Settings", films: int, ratings: int) -> bool:
    import threading

    from vitrine.demo import story
    from vitrine.store.migrate import migrate

    migrate(settings.store_url)
    with _store(settings) as store:
        wanted = story.prepare(console, store, settings, films=films, ratings=ratings)
        console.print("[bold]Building the marts[/]")
        built = story.build_marts(console, store, settings, _foreground(settings, threading.Event()), wanted)
        story.show_rows(console, store, built)
        story.show_statistics(console, built)
    return story.prove(console, settings, built)


@contextmanager
def _embedded(console: "Console", settings: "Settings") -> Generator[str]:
    """The URL of our own PostgreSQL; refused where a database is configured, which is not ours to fill."""
    import signal

    from vitrine.embedded import EmbeddedPostgres
    from vitrine.errors import ConfigError

    if settings.database_url is not None:
        raise ConfigError(
            "VITRINE_DATABASE_URL is set, and the demo brings a database of its own; unset it, or put the sample into"
            " yours with `vitrine migrate` and `vitrine sample`",
            code="DATABASE_SET",
        )
    settings.home.mkdir(parents=True, exist_ok=True)
    server = EmbeddedPostgres(settings.home / "postgres")
    # as Ctrl-C does: what was started is stopped
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with console.status("Starting PostgreSQL …"):
        server.start()
    try:
        console.print(f"[green]✓[/] PostgreSQL, embedded, data in {settings.home}/")
        server.ensure_database("vitrine")
        yield server.url("vitrine")
    finally:
        server.stop()


# -- the service ------------------------------------------------------------------------------------------------------


@app.command()
def migrate() -> None:
    """Bring the store (schema etl) up to date; safe to repeat, safe from two processes at once."""
    from vitrine.store.migrate import migrate as migrate_store

    revision = migrate_store(_service_settings().store_url)
    _console().print(f"The store is at revision {revision}.")


@app.command()
def api() -> None:
    """Serve the REST API on VITRINE_API_HOST and VITRINE_API_PORT."""
    from vitrine.api import server

    settings = _logging_settings()
    settings.source_url("default")
    server.serve(settings, ready=lambda: _say(f"API at http://{settings.api_host}:{settings.api_port}"))


@app.command()
def runner(
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Pipelines to run at the same time.")] = 4,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Serve /metrics, /ready and /live here; 0 does not. Default: VITRINE_METRICS_PORT, which is 0.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Claim requested pipelines and run them; any number of runners side by side. SIGTERM releases.

    Exit code 1 when a run hangs in user code: start it again.
    """
    import os
    import socket
    import threading

    from vitrine.runner.manager import PipelineManager

    settings = _logging_settings()
    settings.source_url("default")
    stop = threading.Event()
    manager = PipelineManager(
        settings,
        _dispatcher(settings, stop),
        name=f"{socket.gethostname()}:{os.getpid()}",
        concurrency=concurrency,
        stop=stop,
    )
    port = settings.metrics_port if metrics_port is None else metrics_port
    with _probes(settings, port, manager.is_ready) if port else nullcontext():
        _on_stop_signals(manager.request_stop)
        _say("runner started")
        if not manager.run():
            _abandon()


@app.command()
def run(
    name: Name,
    allow_shrink: Annotated[
        bool, typer.Option(help="This once, let a full load delete more than max_delete_ratio of the mart.")
    ] = False,
) -> None:
    """Run one pipeline here and now. Exit code 0 done, 1 failed, 3 paused, 4 held by another runner."""
    import os
    import socket
    import threading

    from vitrine.flow import Outcome
    from vitrine.model import RunOptions
    from vitrine.status import LEASED
    from vitrine.store import pipelines

    settings = _service_settings()
    console = _console()
    stop = threading.Event()
    with _store(settings) as store:
        pipelines.expire_leases(store)
        with store.transaction():
            pipeline = pipelines.lock(store, name)
            if pipeline.status in LEASED:
                _stop(f"'{pipeline.name}' is being run by {pipeline.lease_owner}", HELD)
            pipelines.request_run(store, pipeline.id, trigger="cli", options=RunOptions(allow_shrink=allow_shrink))
            claim = pipelines.claim_next(
                store, runner=f"{socket.gethostname()}:{os.getpid()}:cli", ttl=settings.lease_ttl, only=pipeline.id
            )
        if claim is None:
            _stop(f"'{pipeline.name}' waits for its next attempt at {pipeline.next_attempt_at}; pause and run it", HELD)
        _on_stop_signals(stop.set)
        with _bar(console, pipeline.name) as watch:
            executed, status = _foreground(settings, stop).dispatch(
                claim,
                watch=watch,
                retry=False,
                on_hang=lambda error: _abandon(f"vitrine: '{pipeline.name}' failed ({error.code}): {error}\n"),
            )
    if executed.error is not None:
        _stop(f"'{pipeline.name}' failed ({executed.error.code}): {executed.error}")
    console.print(_summary(pipeline.name, executed))
    if executed.outcome is Outcome.RELEASED:
        console.print(f"Stopped; '{pipeline.name}' is {status} and continues where it stopped with the next run.")
    sys.exit(PAUSED if executed.outcome is not Outcome.FINISHED else 0)


@app.command()
def reconcile(name: Name) -> None:
    """Prove that a mart equals its source. Exit code 0 equal, 2 different."""
    from vitrine import reconcile as comparing
    from vitrine.store import pipelines

    settings = _service_settings()
    with _store(settings) as store:
        pipeline = pipelines.get(store, name)
    comparison = comparing.compare(pipeline.definition, settings)
    console = _console()
    console.print(_comparison_table(comparison))
    console.print(f"{pipeline.name}: {comparison.sentence()}")
    sys.exit(0 if comparison.equal else DIFFERENT)


# -- configuration ----------------------------------------------------------------------------------------------------


@app.command(name="list")
def list_pipelines() -> None:
    """Every pipeline with its status."""
    from rich import box
    from rich.table import Table

    from vitrine.store import pipelines, runs

    console = _console()
    wide = console.width >= WIDE
    columns = ("pipeline", "status", *(("mode", "target") if wide else ()), "schedule", "next due", "last run")
    table = Table(header_style="cyan", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in (*columns, "rows", "seconds"):
        table.add_column(column, justify="left" if column in columns else "right", no_wrap=True)
    settings = _service_settings()
    with _store(settings) as store:
        for pipeline in pipelines.list_page(store, limit=10_000):
            definition = pipeline.definition
            last = next(iter(runs.list_page(store, pipeline.id, limit=1)), None)
            table.add_row(
                pipeline.name,
                pipeline.status if definition.enabled else f"{pipeline.status} (disabled)",
                *((definition.mode, definition.target_table) if wide else ()),
                definition.schedule_interval or "",
                f"{pipeline.next_due_at.astimezone(settings.zone):%m-%d %H:%M}" if pipeline.next_due_at else "",
                last.status if last else "never",
                f"{last.rows_read:,}" if last else "",
                f"{last.seconds:.2f}" if last and last.seconds is not None else "",
            )
    console.print(table)


@app.command()
def status(name: Name) -> None:
    """Status, freshness, checkpoint and last runs of one pipeline."""
    from rich import box
    from rich.table import Table

    from vitrine.store import checkpoints, pipelines, runs

    console = _console()
    settings = _service_settings()
    with _store(settings) as store:
        pipeline = pipelines.get(store, name)
        state = checkpoints.load(store, pipeline.id)
        history = runs.list_page(store, pipeline.id, limit=5)
    console.print(f"[bold]{pipeline.name}[/] is {pipeline.status}, version {pipeline.config_version}")
    if pipeline.fresh_as_of:
        console.print(f"the mart shows the source as of {pipeline.fresh_as_of:%Y-%m-%d %H:%M:%S %Z}")
    if pipeline.next_due_at:
        console.print(f"next due: {_local(pipeline.next_due_at, settings)} ({pipeline.definition.schedule_interval})")
    if state.position.cursor:
        console.print(f"checkpoint: {' / '.join(state.position.cursor)}")
    if state.horizon_blocker:
        console.print(f"held back by {state.horizon_blocker}, open for {state.horizon_lag_seconds:.0f} s")
    table = Table(header_style="cyan", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    wide = console.width >= WIDE
    words = ("run", *(("kind",) if wide else ()), "status", "started")
    for column in (*words, "seconds", "read", "written", "deleted", "rejected"):
        table.add_column(column, justify="left" if column in words else "right", no_wrap=True)
    for one in history:
        seconds = f"{one.seconds:.2f}" if one.seconds is not None else ""
        counts = (one.rows_read, one.rows_written, one.rows_deleted, one.rows_rejected)
        began = f"{one.started_at.astimezone(settings.zone):%m-%d %H:%M:%S}"
        kind = (one.kind,) if wide else ()
        table.add_row(str(one.id), *kind, one.status, began, seconds, *(f"{count:,}" for count in counts))
    console.print(table)
    for one in history:
        if one.error_message:
            console.print(f"run {one.id}: {one.error_message} \\[{one.error_code}]", highlight=False)


@app.command()
def transforms() -> None:
    """What Python tasks are installed: transforms of rows and of frames, and readers; with their options."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from vitrine import registry

    table = Table(header_style="cyan", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("name", "kind", "options", "what it does", "from"):
        table.add_column(column, no_wrap=column in ("name", "kind", "options"))
    registry.load(_settings().transform_modules)
    for task in [*registry.transforms.tasks(), *registry.readers.tasks()]:
        options = "\n".join(registry.describe_options(task))
        table.add_row(task.name, task.kind, escape(options), escape(task.summary), task.origin)
    _console().print(table)


@app.command()
def pause(name: Name) -> None:
    """Pause a pipeline: at once if it is not running, otherwise after its current batch."""
    from vitrine.store import pipelines

    with _store(_service_settings()) as store:
        _console().print(f"{name}: {pipelines.request_pause(store, name)}")


@app.command()
def reload(name: Name) -> None:
    """Let a running pipeline take batch_size, max_rows_per_second and pause_between_batches as they are stored now."""
    from vitrine import revisions

    with _store(_service_settings()) as store:
        told = revisions.reload(store, name)
    if not told.running:
        _console().print(f"{told.pipeline.name} is {told.pipeline.status}; the next run takes the stored configuration")
        return
    _console().print(f"{told.pipeline.name}: the stored pace is taken at the next batch")
    if told.waiting:
        _console().print(f"for the next run: {', '.join(told.waiting)}")


@app.command()
def validate(
    what: Annotated[str, typer.Argument(help="Name of a pipeline, or a YAML file.", show_default=False)],
) -> None:
    """Check a pipeline against its source and target without moving a row. Exit code 0 fit to run, 1 not."""
    from rich.markup import escape

    from vitrine import pipeline_files, validation
    from vitrine.store import pipelines

    settings = _service_settings()
    if Path(what).suffix in (".yaml", ".yml"):
        (document,) = pipeline_files.read_folder(Path(what))
        definition = pipeline_files.definition_of(document)
    else:
        with _store(settings) as store:
            definition = pipelines.get(store, what).definition
    report = validation.validate(definition, settings)
    console = _console()
    console.print(f"[bold]{definition.name}[/] → {definition.target_table}, {definition.mode}, lane {report.lane}")
    console.print(escape("columns: " + ", ".join(f"{name} {kind}" for name, kind in report.columns)))
    console.print(f"key: {', '.join(report.key)}" + ("" if report.target_exists else " (the target will be created)"))
    if report.rows_expected is not None:
        console.print(f"about {report.rows_expected:,} rows")
    if report.first_due_at is not None:
        console.print(f"schedule: {definition.schedule_interval}, due at {_local(report.first_due_at, settings)}")
    for warning in report.warnings:
        console.print(f"[yellow]warning[/]: {escape(warning)}")


@app.command()
def rejects(name: Name) -> None:
    """Rows of a pipeline that wait in quarantine, and why."""
    from rich import box
    from rich.table import Table

    from vitrine.store import pipelines, rejects

    table = Table(header_style="cyan", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("key", "column", "sqlstate", "reason", "run", "since"):
        table.add_column(column)
    with _store(_service_settings()) as store:
        pipeline = pipelines.get(store, name)
        waiting = rejects.list_open(store, pipeline.id)
    for one in waiting:
        since = f"{one['created_at']:%Y-%m-%d %H:%M:%S}"
        table.add_row(one["key"], one["column_name"] or "", one["sqlstate"], one["reason"], str(one["run_id"]), since)
    console = _console()
    console.print(table if waiting else f"{pipeline.name}: nothing waits in quarantine")


@app.command()
def apply(
    folder: Annotated[Path, typer.Argument(help="A YAML file, or a folder of them.", show_default=False)],
    state: Annotated[
        str | None, typer.Option(help="For a changed query with a checkpoint: keep or reset it.", metavar="keep|reset")
    ] = None,
) -> None:
    """Create or change pipelines from YAML files: all of them, or none."""
    from vitrine import pipeline_files, revisions

    if state not in (None, "keep", "reset"):
        _stop(f"--state is keep or reset, not '{state}'", 2)
    settings = _service_settings()
    found = pipeline_files.read_folder(folder)
    with _store(settings) as store:
        outcomes = revisions.apply_all(store, settings, found, state)
    for name, outcome in outcomes:
        _console().print(f"{name}: {outcome}")


@app.command()
def export(folder: Annotated[Path, typer.Argument(help="Where the files go.", show_default=False)]) -> None:
    """Write every pipeline as a YAML file that `apply` reads back."""
    from vitrine import pipeline_files
    from vitrine.store import pipelines

    with _store(_service_settings()) as store:
        found = pipelines.list_page(store, limit=10_000)
    written = pipeline_files.write_folder(folder, found)
    _console().print(f"{len(written)} file(s) in {folder}")


# -- building ---------------------------------------------------------------------------------------------------------


def _settings(**overrides: Any) -> "Settings":
    from vitrine import failpoints, settings

    loaded = settings.load(**overrides)
    failpoints.install(loaded.failpoints)
    return loaded


def _service_settings() -> "Settings":
    """The settings of a command that needs a database: the configured one, or the demo's while that is up."""
    from vitrine.embedded import EmbeddedPostgres

    settings = _settings()
    if settings.database_url is not None:
        return settings
    url = EmbeddedPostgres(settings.home / "postgres").running_url()
    return settings if url is None else _settings(database_url=url)


def _logging_settings() -> "Settings":
    from vitrine import logs

    settings = _service_settings()
    logs.configure_logging(settings.log_level, settings.log_format, secrets=settings.passwords())
    return settings


@contextmanager
def _probes(settings: "Settings", port: int, is_ready: Callable[[], bool]) -> Generator[None]:
    from vitrine import metrics
    from vitrine.runner import probes

    with probes.serving(settings.metrics_host, port, metrics.switch_on(), is_ready):
        yield


def _store(settings: "Settings") -> "Connection":
    from vitrine.postgres import connect

    return connect(settings.store_url, name="vitrine:cli")


def _dispatcher(settings: "Settings", stop: "threading.Event") -> "PipelineDispatcher":
    from vitrine.runner.dispatcher import PipelineDispatcher
    from vitrine.runner.executor import PipelineExecutor

    return PipelineDispatcher(settings, PipelineExecutor(settings, stop))


def _foreground(settings: "Settings", stop: "threading.Event") -> "PipelineDispatcher":
    """A dispatcher without its log lines: the command itself tells how the run ended."""
    import logging

    logging.getLogger("vitrine.runner.dispatcher").setLevel(logging.CRITICAL)
    return _dispatcher(settings, stop)


def _on_stop_signals(stop: Callable[[], None]) -> None:
    import signal
    import threading
    from types import FrameType

    def handle(number: int, frame: FrameType | None) -> None:
        # in a thread, because this one may hold the very lock that setting an event takes
        threading.Thread(target=stop).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def _abandon(text: str = "") -> NoReturn:
    """End the process at once: a thread of it hangs in user code, and Python would wait for that."""
    import os

    sys.stderr.write(text)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(FAILED)


def _console() -> "Console":
    from rich.console import Console

    return Console()


def _say(text: str) -> None:
    import logging

    logging.getLogger(__name__).info(text, extra={"action": "started"})


@contextmanager
def _bar(console: "Console", name: str) -> Generator[Callable[["Counts", int | None], None]]:
    if not console.is_terminal:
        yield lambda counts, expected: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task(name, total=None)

        def watch(counts: "Counts", expected: int | None) -> None:
            bars.update(bar, completed=counts.read, total=max(expected, counts.read) if expected else None)

        yield watch


def _local(moment: "datetime", settings: "Settings") -> str:
    """In the time zone of the schedules."""
    return f"{moment.astimezone(settings.zone):%Y-%m-%d %H:%M:%S %Z}"


def _summary(name: str, executed: "Executed") -> str:
    counts = executed.counts
    return (
        f"{name}: {executed.outcome}, {counts.read:,} rows read, {counts.written:,} written, {counts.deleted:,} deleted"
        f" in {executed.seconds:.2f} s"
    )


def _comparison_table(comparison: Any) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(header_style="cyan", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("", "source", "target"):
        table.add_column(column)
    for label, field in (
        ("rows", "rows"),
        (f"lowest {comparison.control}", "lowest"),
        (f"highest {comparison.control}", "highest"),
        (f"hash over {len(comparison.columns)} column(s)", "digest"),
    ):
        ours, theirs = getattr(comparison.source, field), getattr(comparison.target, field)
        table.add_row(label, str(ours), str(theirs) if ours == theirs else f"[red]{theirs}[/]")
    return table
