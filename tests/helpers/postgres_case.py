"""The cases of PostgreSQL: marts and source tables seen, changed and broken from outside."""

import itertools
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any

from psycopg import sql

from tests.helpers.proxy import Proxy
from vitrine.core.copytext import values
from vitrine.core.rows import Column, Key
from vitrine.postgres import TEXT_FORMAT, Connection, connect, raw
from vitrine_testing import REFUSED, SAMPLES, Fault, NotSimulated, Texts

_numbers = itertools.count(1)

_KEY = """
    SELECT a.attname::text AS name FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, place)
      JOIN pg_attribute a ON a.attnum = k.number
     WHERE i.indrelid = to_regclass(%s) AND i.indisprimary AND a.attrelid = i.indrelid ORDER BY place
"""

_COLUMNS = """
    SELECT attname::text AS name FROM pg_attribute
     WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


class PostgresSinkCase:
    """A SinkCase; runs that reach the server through a proxy can lose their connections."""

    connector = "postgres"
    types: Collection[str] = list(SAMPLES)
    refused: Mapping[str, Collection[str]] = MappingProxyType({})

    def __init__(self, url: str, proxy: Proxy | None) -> None:
        self._url = url
        self._proxy = proxy

    def settings(self) -> Mapping[str, str]:
        return {"VITRINE_DATABASE_URL": self._url if self._proxy is None else self._proxy.url(self._url)}

    def target(self) -> str:
        return f"analytics.t{next(_numbers)}"

    def rows(self, target: str) -> dict[Key, Texts]:
        with self._connected() as connection, connection.transaction():
            connection.execute(TEXT_FORMAT)
            key = [row["name"] for row in connection.execute(_KEY, [target])]
            if not key:
                return {}
            names = [row["name"] for row in connection.execute(_COLUMNS, [target])]
            with connection.cursor().copy(sql.SQL("COPY {} TO STDOUT").format(_table(target))) as copy:
                lines = b"".join(bytes(part) for part in copy).decode().split("\n")[:-1]
        rows = [dict(zip(names, map(_value, line.split("\t")), strict=True)) for line in lines]
        return {tuple(row[name] or "" for name in key): row for row in rows}

    def change(self, target: str, key: Key, row: Texts | None) -> None:
        with self._connected() as connection:
            if row is None:
                statement = sql.SQL("DELETE FROM {} WHERE id = {}").format(_table(target), sql.Literal(key[0]))
            else:
                statement = sql.SQL("UPDATE {} SET note = {} WHERE id = {}").format(
                    _table(target), sql.Literal(row["note"]), sql.Literal(key[0])
                )
            assert connection.execute(statement).rowcount == 1

    @contextmanager
    def fault(self, target: str, fault: Fault) -> Generator[None]:
        with ExitStack() as ends:
            self._begin(target, fault, ends)
            yield

    def _begin(self, target: str, fault: Fault, ends: ExitStack) -> None:
        """Produce the fault; what ends it goes to `ends`."""
        if fault is Fault.APPLIED_LATE:
            raise NotSimulated("a transaction whose connection has ended is rolled back, and never applied")
        if fault in (Fault.DOWN, Fault.REPLY_LOST):
            self._break(fault, ends)
            return
        connection, table = ends.enter_context(self._connected()), _table(target)
        if fault is Fault.ONE_ROW_REFUSED:
            rule = sql.SQL("ALTER TABLE {} ADD CONSTRAINT rule CHECK (note <> {})")
            connection.execute(rule.format(table, sql.Literal(REFUSED)))
            ends.callback(connection.execute, sql.SQL("ALTER TABLE {} DROP CONSTRAINT rule").format(table))
        elif fault is Fault.TARGET_GONE:
            connection.execute(sql.SQL("DROP TABLE {}").format(table))
        else:
            ends.enter_context(connection.transaction())
            connection.execute(sql.SQL("LOCK TABLE {}").format(table))

    def _break(self, fault: Fault, ends: ExitStack) -> None:
        proxy = self._proxy
        assert proxy is not None, "this test needs the proxy"
        if fault is Fault.DOWN:
            ends.callback(setattr, proxy, "refusing", False)
            proxy.refusing = True
            proxy.cut()
        else:
            ends.callback(proxy.cancel_drops)
            proxy.drop_commit_reply(b"SAVEPOINT fitting")

    def _connected(self) -> Connection:
        return connect(self._url, name="tests")


class PostgresSourceCase:
    """A SourceCase over tables of the schema `content`."""

    connector = "postgres"
    types: Collection[str] = list(SAMPLES)

    def __init__(self, url: str, proxy: Proxy | None) -> None:
        self._url = url
        self._proxy = proxy
        with self._connected() as connection:
            connection.execute("CREATE SCHEMA IF NOT EXISTS content")

    def settings(self) -> Mapping[str, str]:
        return {"VITRINE_DATABASE_URL": self._url if self._proxy is None else self._proxy.url(self._url)}

    def create(self, columns: Sequence[Column], rows: Sequence[Texts]) -> Mapping[str, Any]:
        table = f"content.t{next(_numbers)}"
        definitions = [sql.SQL("{} {}").format(sql.Identifier(column.name), raw(column.type)) for column in columns]
        with self._connected() as connection:
            create = sql.SQL("CREATE TABLE {} ({})")
            connection.execute(create.format(_table(table), sql.SQL(", ").join(definitions)))
            for row in rows:
                self._insert(connection, table, row)
        return {"source_query": f"SELECT * FROM {table}", "options": {"horizon_margin": "0s"}}

    def put(self, source: Mapping[str, Any], row: Texts) -> None:
        table = _source_table(source)
        with self._connected() as connection, connection.transaction():
            connection.execute(sql.SQL("DELETE FROM {} WHERE id = {}").format(_table(table), sql.Literal(row["id"])))
            self._insert(connection, table, row)

    def add_column(self, source: Mapping[str, Any]) -> None:
        with self._connected() as connection:
            connection.execute(sql.SQL("ALTER TABLE {} ADD COLUMN added text").format(_table(_source_table(source))))

    @contextmanager
    def late_commit(self, source: Mapping[str, Any]) -> Generator[Texts]:
        with self._connected() as connection, connection.transaction():
            connection.execute("SET LOCAL TimeZone = 'UTC'")
            found = connection.execute("SELECT now()::text AS now").fetchone()
            assert found is not None
            row: Texts = {"id": "49", "note": "late", "modified": found["now"]}
            self._insert(connection, _source_table(source), row)
            yield row

    @contextmanager
    def fault(self, source: Mapping[str, Any], fault: Fault) -> Generator[None]:
        with ExitStack() as ends:
            if fault is Fault.DOWN:
                assert self._proxy is not None, "this test needs the proxy"
                ends.callback(setattr, self._proxy, "refusing", False)
                self._proxy.refusing = True
                self._proxy.cut()
            else:
                connection = ends.enter_context(self._connected())
                ends.enter_context(connection.transaction())
                connection.execute(sql.SQL("LOCK TABLE {}").format(_table(_source_table(source))))
            yield

    def _insert(self, connection: Connection, table: str, row: Texts) -> None:
        names = sql.SQL(", ").join(map(sql.Identifier, row))
        texts = sql.SQL(", ").join(map(sql.Literal, row.values()))
        connection.execute(sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(_table(table), names, texts))

    def _connected(self) -> Connection:
        return connect(self._url, name="tests")


def _source_table(source: Mapping[str, Any]) -> str:
    return str(source["source_query"]).removeprefix("SELECT * FROM ")


def _table(target: str) -> sql.Identifier:
    return sql.Identifier(*target.split("."))


def _value(field: str) -> str | None:
    return None if field == values.NULL else values.unescape(field)
