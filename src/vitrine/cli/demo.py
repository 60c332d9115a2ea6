"""Commands to try the product: demo, up, sample, devserver."""

import importlib
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrine.cli import building, exit_codes, output, process
from vitrine.text import markup

if TYPE_CHECKING:
    import threading

    from rich.console import Console

    from vitrine.definition.connectors import DevelopmentServer
    from vitrine.embedded import EmbeddedPostgres
    from vitrine.postgres import Connection
    from vitrine.settings import Settings
    from vitrine.store.roles import Places

READER, RUNNER, API = "demo_reader", "demo_runner", "demo_api"


@dataclass(frozen=True)
class DemoAccounts:
    """Settings for each process of the demo; all read the sources as the reader."""

    administrator: "Settings"  # prepares the database, and adds ratings
    runner: "Settings"
    api: "Settings"


def accounts_of_demo(server: "EmbeddedPostgres", **overrides: Any) -> DemoAccounts:
    def settings(user: str) -> "Settings":
        return building.load_settings(database_url=server.url(user=user), sources=sources, **overrides)

    sources = {"default": server.url(user=READER)}
    own = building.load_settings(database_url=server.url(), **overrides)
    return DemoAccounts(own, settings(RUNNER), settings(API))


def create_accounts(store: "Connection", own: DemoAccounts, places: "Places") -> None:
    """Create the accounts in the demo's own server, where they need no password, as members of the three roles."""
    from psycopg import sql

    from vitrine.store import roles

    names = roles.Roles.of(roles.DEFAULT_PREFIX)
    roles.apply_roles(store, names, places)
    for login, role in ((READER, names.reader), (RUNNER, names.runner), (API, names.api)):
        known = store.execute("SELECT FROM pg_roles WHERE rolname = %s", [login]).fetchone()
        if known is None:
            statement = sql.SQL("CREATE ROLE {0} LOGIN IN ROLE {1}; ALTER ROLE {0} SET search_path = pg_catalog")
            store.execute(statement.format(sql.Identifier(login), sql.Identifier(role)))
    for schema in places.marts:  # trace, plan and the quick reconcile of the API compare rows with those of a mart
        store.execute(
            sql.SQL(
                "GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {api};"
                " ALTER DEFAULT PRIVILEGES FOR ROLE {runner} IN SCHEMA {schema} GRANT SELECT ON TABLES TO {api}"
            ).format(schema=sql.Identifier(schema), api=sql.Identifier(names.api), runner=sql.Identifier(names.runner))
        )


POLL_SECONDS = 0.5


def devserver(
    name: Annotated[
        str | None, typer.Argument(help="Connector whose server is started; without it, list them.", show_default=False)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 chooses a free one.", show_default="the usual one"),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder that keeps the data; without it, the data is removed at the end.")
    ] = None,
) -> None:
    """Run a real server for development and tests until Ctrl-C."""
    from vitrine.definition import connectors

    if name is None:
        output.show(f"Development servers: {', '.join(connectors.with_devserver()) or 'none'}")
        return
    factory = connectors.devserver(name)
    process.exit_on_stop_signals()  # also during the download: nothing unfinished is left
    server = factory.start(folder, factory.default_port if port is None else port, output.show)
    try:
        _serve(server, folder)
    finally:
        server.stop()
    output.show(f"{server.title} is stopped.")


def _serve(server: "DevelopmentServer", folder: Path | None) -> None:
    """Show the address and wait for a signal; ConfigError if the server ends before."""
    import threading

    from vitrine.errors import ConfigError

    stop = threading.Event()
    process.on_stop_signals(stop.set)
    output.show(f"{server.title} is running at {server.url}, for this machine only and without a password.")
    output.show("The data is removed when it stops." if folder is None else f"The data is kept in {folder}.")
    output.show_lines(
        f"Use it in another terminal:\n\n    export {server.url_variable}={server.url}\n\nCtrl-C stops it."
    )
    while not stop.wait(POLL_SECONDS):
        if not server.is_running:
            raise ConfigError(f"{server.title} ended by itself; start it again", code="DEVSERVER_FAILED")


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
        equal = _build_sample(console, accounts_of_demo(server, connectors=own), films, ratings)
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
        from vitrine.api import addresses

        importlib.import_module("vitrine.api.server")  # a missing library is reported before the sample is built
    from vitrine.demo import story

    console = output.rich_console()
    settings = building.load_settings()
    # a port in use is reported before the sample is built
    addresses.listen(settings).close()
    if settings.database_url is not None:
        from vitrine.store.migrate import migrate

        migrate(settings.store_url)
        story.serve_demo(console, settings, settings, _stop_event())
        return
    with _embedded(console, settings) as embedded:
        own = accounts_of_demo(embedded)
        _build_sample(console, own, films, ratings)
        story.serve_demo(console, own.api, own.runner, _stop_event(), new_ratings=own.administrator)


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
        create_accounts(store, own, building.places(own.administrator))
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
    from vitrine.definition import connectors

    factory = connectors.devserver("elasticsearch")
    with console.status("Starting Elasticsearch …"):
        server = factory.start(settings.home / SEARCH_FOLDER, 0, lambda text: console.print(markup(text)))
    try:
        console.print(f"[green]✓[/] Elasticsearch, data in {markup(settings.home / SEARCH_FOLDER)}/")
        yield server.url
    finally:
        server.stop()
