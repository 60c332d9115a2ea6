"""Commands to try the product: demo, up, sample."""

import importlib
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from vitrine.cli import accounts, building, exit_codes, output, process
from vitrine.printable import markup

if TYPE_CHECKING:
    import threading

    from rich.console import Console

    from vitrine.cli.accounts import DemoAccounts
    from vitrine.embedded import EmbeddedPostgres
    from vitrine.settings import Settings

Films = Annotated[int, typer.Option(min=30, max=2_000_000, help="Films in the sample cinema.")]
Ratings = Annotated[int, typer.Option(min=100, max=50_000_000, help="Ratings in the sample cinema.")]

SEARCH_FOLDER = "elasticsearch"


def demo(
    films: Films = 1000,
    ratings: Ratings = 20_000,
    search: Annotated[bool, typer.Option("--search", help="Start an Elasticsearch for the search indexes.")] = False,
) -> None:
    """Build and show the sample marts on an embedded PostgreSQL.

    Every mart is compared with its source.
    """
    building.refuse_api("demo")
    console = output.rich_console()
    settings = building.load_settings()
    with _embedded(console, settings) as server, ExitStack() as servers:
        # the server of the demo is used even if another cluster is configured
        own = {"elasticsearch": {"url": servers.enter_context(_search_server(console, settings))}} if search else {}
        equal = _build_sample(console, accounts.of_demo(server, connectors=own), films, ratings)
    console.print(
        f"\nThe data is kept in {markup(settings.home)}/. Next: `make serve`, then http://127.0.0.1:{settings.api_port}"
    )
    if search:
        console.print("To search yourself, start Elasticsearch again:")
        console.print(f"  .venv/bin/vitrine devserver elasticsearch --folder {markup(settings.home / SEARCH_FOLDER)}")
    sys.exit(0 if equal else exit_codes.DIFFERENT)


def up(films: Films = 1000, ratings: Ratings = 20_000) -> None:
    """Run API and runner until Ctrl-C, with the demo's data.

    With a database configured, only API and runner; otherwise on an embedded PostgreSQL, with a stream of new ratings.
    """
    building.refuse_api("up")
    with building.requires_extra("api", "the API"):
        from vitrine.api import binding

        importlib.import_module("vitrine.api.server")  # a missing library is reported before the sample is built
    from vitrine.demo import serving

    console = output.rich_console()
    settings = building.load_settings()
    # a port in use is reported before the sample is built
    binding.listen(settings).close()
    if settings.database_url is not None:
        from vitrine.store.migrate import migrate

        migrate(settings.store_url)
        serving.serve(console, settings, settings, _stop_event())
        return
    with _embedded(console, settings) as embedded:
        own = accounts.of_demo(embedded)
        _build_sample(console, own, films, ratings)
        serving.serve(console, own.api, own.runner, _stop_event(), new_ratings=own.administrator)


def _stop_event() -> "threading.Event":
    import threading

    stop = threading.Event()
    process.on_stop_signals(stop.set)
    return stop


def sample(films: Films = 1000, ratings: Ratings = 20_000) -> None:
    """Create the sample cinema in the configured database.

    Schemas content and ugc, and the pipelines of the demo.
    """
    building.refuse_api("sample")
    from vitrine.demo import search, story

    console = output.rich_console()
    settings = building.load_settings()
    with building.connect_store(settings) as store:
        story.prepare(console, store, settings, films=films, ratings=ratings)
        search.prepare(console, store, settings)


def _build_sample(console: "Console", own: "DemoAccounts", films: int, ratings: int) -> bool:
    """Whether every mart and every search index equals its source."""
    import threading

    from vitrine.demo import search, story
    from vitrine.store.migrate import migrate

    process.tune_for_rows()
    migrate(own.administrator.store_url)
    with building.connect_store(own.administrator) as store:
        marts = story.prepare(console, store, own.administrator, films=films, ratings=ratings)
        accounts.create(store, own, building.places(own.administrator))
        indexes = search.prepare(console, store, own.administrator)
        if indexes:
            indexes = search.follow_cluster(store, own.administrator, indexes)
        else:
            search.suspend(store, own.administrator)
    console.print("[bold]Building the marts[/]")
    with building.connect_store(own.runner) as store:
        dispatcher = building.foreground_dispatcher(own.runner, threading.Event())
        built = story.build_marts(console, store, own.runner, dispatcher, [*marts, *indexes])
        story.show_rows(console, store, built[: len(marts)])
        if indexes:
            search.show(console, own.runner, indexes)
        story.show_statistics(console, built)
    return story.prove(console, own.runner, built)


@contextmanager
def _embedded(console: "Console", settings: "Settings") -> "Generator[EmbeddedPostgres]":
    """The embedded PostgreSQL; refused when a database is configured, because the demo must not fill it."""
    from vitrine.embedded import EmbeddedPostgres
    from vitrine.errors import ConfigError

    if settings.database_url is not None:
        raise ConfigError(
            "VITRINE_DATABASE_URL is set, but the demo uses a database of its own; unset it, or create the sample in"
            " your database with `vitrine migrate` and `vitrine sample`",
            code="DATABASE_SET",
        )
    server = EmbeddedPostgres(settings.home / "postgres")
    process.exit_on_stop_signals()  # the server is stopped before the process ends
    with console.status("Starting PostgreSQL …"):
        server.start()
    try:
        console.print(f"[green]✓[/] PostgreSQL, embedded, data in {markup(settings.home)}/")
        server.ensure_database("vitrine")
        yield server
    finally:
        server.stop()


@contextmanager
def _search_server(console: "Console", settings: "Settings") -> Generator[str]:
    """The URL of an Elasticsearch for this command; its data is kept for the next one."""
    from vitrine import plugins

    factory = plugins.devserver("elasticsearch")
    with console.status("Starting Elasticsearch …"):
        server = factory.start(settings.home / SEARCH_FOLDER, 0, lambda text: console.print(markup(text)))
    try:
        console.print(f"[green]✓[/] Elasticsearch, data in {markup(settings.home / SEARCH_FOLDER)}/")
        yield server.url
    finally:
        server.stop()
