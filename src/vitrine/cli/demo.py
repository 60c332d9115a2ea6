"""Commands to try the product: demo, up, sample."""

import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from vitrine.cli import building, output, process

if TYPE_CHECKING:
    from rich.console import Console

    from vitrine.settings import Settings

Films = Annotated[int, typer.Option(min=30, max=2_000_000, help="Films in the sample cinema.")]
Ratings = Annotated[int, typer.Option(min=100, max=50_000_000, help="Ratings in the sample cinema.")]

SEARCH_FOLDER = "elasticsearch"


def demo(
    films: Films = 1000,
    ratings: Ratings = 20_000,
    search: Annotated[bool, typer.Option("--search", help="Start an Elasticsearch for the search indexes.")] = False,
) -> None:
    """Build the sample marts on an embedded PostgreSQL, show them, and compare them with their source."""
    console = output.rich_console()
    settings = building.load_settings()
    with _embedded(console, settings) as url, ExitStack() as servers:
        # the server of the demo is used even if another cluster is configured
        own = {"elasticsearch": {"url": servers.enter_context(_search_server(console, settings))}} if search else {}
        equal = _build_sample(console, building.load_settings(database_url=url, connectors=own), films, ratings)
    console.print(
        f"\nThe data is kept in {settings.home}/. Next: `make serve`, then http://127.0.0.1:{settings.api_port}"
    )
    if search:
        console.print("To search yourself, start Elasticsearch again:")
        console.print(f"  .venv/bin/vitrine devserver elasticsearch --folder {settings.home / SEARCH_FOLDER}")
    sys.exit(0 if equal else process.DIFFERENT)


def up(films: Films = 1000, ratings: Ratings = 20_000) -> None:
    """Build the demo, then keep an API, a runner and a stream of new ratings running until Ctrl-C."""
    with building.requires_extra("api", "the API"):
        from vitrine.api import server
    from vitrine.demo import serving

    console = output.rich_console()
    settings = building.load_settings()
    # a port in use is reported before the sample is built
    server.listen(settings.api_host, settings.api_port).close()
    if settings.database_url is not None:
        from vitrine.store.migrate import migrate

        migrate(settings.store_url)
        serving.serve(console, settings, trickle=False)
        return
    with _embedded(console, settings) as url:
        own = building.load_settings(database_url=url)
        _build_sample(console, own, films, ratings)
        serving.serve(console, own, trickle=True)


def sample(films: Films = 1000, ratings: Ratings = 20_000) -> None:
    """Create the sample cinema (schemas content and ugc) and its pipelines in the configured database."""
    from vitrine.demo import search, story

    console = output.rich_console()
    settings = building.load_settings()
    with building.connect_store(settings) as store:
        story.prepare(console, store, settings, films=films, ratings=ratings)
        search.prepare(console, store, settings)


def _build_sample(console: "Console", settings: "Settings", films: int, ratings: int) -> bool:
    """Whether every mart and every search index equals its source."""
    import threading

    from vitrine.demo import search, story
    from vitrine.store.migrate import migrate

    process.tune_for_rows()
    migrate(settings.store_url)
    with building.connect_store(settings) as store:
        marts = story.prepare(console, store, settings, films=films, ratings=ratings)
        indexes = search.prepare(console, store, settings)
        if indexes:
            indexes = search.follow_cluster(store, settings, indexes)
        else:
            search.suspend(store, settings)
        console.print("[bold]Building the marts[/]")
        dispatcher = building.foreground_dispatcher(settings, threading.Event())
        built = story.build_marts(console, store, settings, dispatcher, [*marts, *indexes])
        story.show_rows(console, store, built[: len(marts)])
        if indexes:
            search.show(console, store, settings, indexes)
        story.show_statistics(console, built)
    return story.prove(console, settings, built)


@contextmanager
def _embedded(console: "Console", settings: "Settings") -> Generator[str]:
    """The URL of the embedded PostgreSQL; refused when a database is configured, because the demo must not fill it."""
    import signal

    from vitrine.embedded import EmbeddedPostgres
    from vitrine.errors import ConfigError

    if settings.database_url is not None:
        raise ConfigError(
            "VITRINE_DATABASE_URL is set, but the demo uses a database of its own; unset it, or create the sample in"
            " your database with `vitrine migrate` and `vitrine sample`",
            code="DATABASE_SET",
        )
    settings.home.mkdir(parents=True, exist_ok=True)
    server = EmbeddedPostgres(settings.home / "postgres")
    # like Ctrl-C: stop the server before the process ends
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with console.status("Starting PostgreSQL …"):
        server.start()
    try:
        console.print(f"[green]✓[/] PostgreSQL, embedded, data in {settings.home}/")
        server.ensure_database("vitrine")
        yield server.url("vitrine")
    finally:
        server.stop()


@contextmanager
def _search_server(console: "Console", settings: "Settings") -> Generator[str]:
    """The URL of an Elasticsearch for this command; its data is kept for the next one."""
    from vitrine import plugins

    factory = plugins.devserver("elasticsearch")
    with console.status("Starting Elasticsearch …"):
        server = factory.start(settings.home / SEARCH_FOLDER, 0, console.print)
    try:
        console.print(f"[green]✓[/] Elasticsearch, data in {settings.home / SEARCH_FOLDER}/")
        yield server.url
    finally:
        server.stop()
