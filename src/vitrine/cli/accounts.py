"""The accounts of the demo: an administrator, and one each for reader, runner and API."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitrine.cli import building

if TYPE_CHECKING:
    from vitrine.accounts.roles import Places
    from vitrine.embedded import EmbeddedPostgres
    from vitrine.postgres import Connection
    from vitrine.settings import Settings

READER, RUNNER, API = "demo_reader", "demo_runner", "demo_api"


@dataclass(frozen=True)
class DemoAccounts:
    """Settings for each process of the demo; all read the sources as the reader."""

    administrator: "Settings"  # prepares the database, and adds ratings
    runner: "Settings"
    api: "Settings"


def of_demo(server: "EmbeddedPostgres", **overrides: Any) -> DemoAccounts:
    def settings(user: str) -> "Settings":
        return building.load_settings(database_url=server.url(user=user), sources=sources, **overrides)

    sources = {"default": server.url(user=READER)}
    own = building.load_settings(database_url=server.url(), **overrides)
    return DemoAccounts(own, settings(RUNNER), settings(API))


def create(store: "Connection", own: DemoAccounts, places: "Places") -> None:
    """Create the accounts in the demo's own server, where they need no password, as members of the three roles."""
    from psycopg import sql

    from vitrine.accounts import roles

    names = roles.Roles.of(roles.DEFAULT_PREFIX)
    roles.apply(store, names, places)
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
