"""Connections to Postgres, and its errors in our own groups."""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import LiteralString, cast

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import DictRow, dict_row

from vitrine.errors import ConfigError, DataError, TransientError, group_of
from vitrine.model import Measure

Connection = psycopg.Connection[DictRow]


def connect(url: str, *, name: str, side: str = "database") -> Connection:
    """One connection, fit for PgBouncer: nothing relies on session state. `name` shows in pg_stat_activity."""
    check_url(url, side)
    with translated(side):
        return psycopg.Connection[DictRow].connect(
            url,
            application_name=name,
            autocommit=True,
            prepare_threshold=None,
            row_factory=dict_row,
            connect_timeout=10,
            keepalives_idle=30,
            keepalives_interval=10,
            keepalives_count=3,
        )


def check_url(url: str, side: str) -> None:
    """ConfigError for a URL that cannot be read; libpq's own message would quote the password."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        parts = {"host": "@"}
    # what follows an unencoded @ is taken for the host, what precedes an unencoded / for the port
    if "@" in str(parts.get("host", "")) or not re.fullmatch(r"[0-9,]*", str(parts.get("port", ""))):
        raise ConfigError(
            f"{side}: the database URL cannot be read; special characters in its password must be percent-encoded"
            " (@ as %40, / as %2F)",
            code="BAD_URL",
        ) from None


def safe_message(exc: BaseException | None) -> str:
    """What the server said in one line, without the row values that Postgres puts into DETAIL and data errors."""
    if isinstance(exc, psycopg.Error) and exc.sqlstate is not None:
        if group_of(exc.sqlstate) is DataError:
            names = (exc.diag.table_name, exc.diag.column_name, exc.diag.constraint_name)
            return " ".join([exc.sqlstate, type(exc).__name__, *(name for name in names if name)])
        return f"{exc.diag.message_primary} ({exc.sqlstate})"
    lines = str(exc).strip().splitlines()
    return re.sub(r"//[^@/\s]*@", "//", lines[0]) if lines else type(exc).__name__


_LIMITS = {"57014": ("QUERY_CANCELED", "; raise that limit for this account, or let the query do less at once")}
"""SQLSTATEs that mean a limit of the server: our code, and the remedy."""


@contextmanager
def translated(side: str, *, code: str | None = None) -> Generator[None]:
    """Raise what psycopg raises as the group that tells what to do; `side` begins the sentence."""
    try:
        yield
    except psycopg.Error as exc:
        group = group_of(exc.sqlstate)
        if isinstance(exc, psycopg.OperationalError) and exc.sqlstate is None:
            # refused passwords and unknown databases arrive without a SQLSTATE: the text is all there is
            group = TransientError
        limit, remedy = _LIMITS.get(exc.sqlstate or "", (None, ""))
        raise group(f"{side}: {safe_message(exc)}{remedy}", code=code or limit) from exc


PRINTING = """
    SET LOCAL search_path = pg_catalog, pg_temp;
    SET LOCAL TimeZone = 'UTC';
    SET LOCAL DateStyle = 'ISO';
    SET LOCAL IntervalStyle = 'postgres';
    SET LOCAL bytea_output = 'hex';
    SET LOCAL extra_float_digits = 1
"""
"""Values print and names resolve the same way in every transaction, whatever the server's defaults."""


def raw(text: str) -> sql.SQL:
    """Text that is SQL already: a query that passed the policy, or a type name printed by Postgres."""
    return sql.SQL(cast(LiteralString, text))


def measure(connection: Connection, relation: sql.Composable, types: Mapping[str, str], control: str) -> Measure:
    """The figures of a relation over these columns, each cast to the type given."""
    values = [sql.SQL("CAST({} AS {})").format(sql.Identifier("q", name), raw(kind)) for name, kind in types.items()]
    statement = sql.SQL(
        "SELECT count(*) AS rows, min({control})::text AS lowest, max({control})::text AS highest,"
        "       coalesce(sum(hashtextextended(ROW({values})::text, 0)), 0)::text AS digest FROM {relation} AS q"
    ).format(
        control=sql.SQL("CAST({} AS {})").format(sql.Identifier("q", control), raw(_comparable(types[control]))),
        values=sql.SQL(", ").join(values),
        relation=relation,
    )
    row = fetch_extended(connection, statement)
    return Measure(**row) if row else Measure(0, None, None, "0")


def fetch_extended(connection: Connection, statement: sql.Composed) -> DictRow | None:
    """One row by the extended protocol, where the server refuses a second statement; asking for binary makes it so."""
    with connection.cursor(binary=True) as cursor:
        return cursor.execute(statement).fetchone()


def _comparable(type_name: str) -> str:
    # min and max do not exist for these, and their texts sort well enough
    return "text" if type_name in ("uuid", "boolean", "json", "jsonb") else type_name
