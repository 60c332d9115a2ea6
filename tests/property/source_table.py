"""A source table of any shape, with the sessions of the application that writes to it and changes it."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psycopg
from psycopg import sql

from tests.helpers.kinds import BY_NAME, Kind
from tests.property.shapes import CLOCKS, COUNTERS, ROW_ID, Shape
from vitrine.postgres import Connection, connect, raw

_ID = sql.Identifier(ROW_ID)
_NAME_FOR_A_WHILE = "absent_for_a_while"

# Another image of an equal value
_RESPELLED = {
    "numeric": "{0} + 0.000",
    "real": "CASE WHEN {0} = 0 THEN -{0} ELSE {0} END",
    "double precision": "CASE WHEN {0} = 0 THEN -{0} ELSE {0} END",
    "interval": "{0} + interval '24 hours' - interval '1 day'",
    "text with operators of its own, as citext has them": "CAST(upper(CAST({0} AS text)) AS public.caseless)",
    "citext": "CAST(upper(CAST({0} AS text)) AS public.citext)",
    "text, nondeterministic ICU collation": "upper({0})",
}

# Values that the table does not take; an index over an array of elements without order takes none
_REFUSED = (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.UndefinedFunction)

Change = tuple[str, sql.Composable]
"""A column and its value; literals, because an argument would need a placeholder, and a name may look like one."""


class SourceTable:
    """The table and its writer, whose session has the settings of the database."""

    def __init__(self, url: str, control: Connection, shape: Shape) -> None:
        self.columns: dict[str, Kind] = dict(shape.all_columns)  # the present ones
        self.identifier = sql.Identifier("ugc", shape.table)
        self._shape = shape
        self._url = url
        self._control = control
        self._rows = 0
        self._ticks = 0
        self._writer = self._connect()
        self._create()

    @property
    def plain(self) -> list[str]:
        """Columns that are neither key nor cursor nor identity."""
        return [name for name in self.columns if name not in (ROW_ID, *self._shape.key, self._shape.cursor)]

    @property
    def is_empty(self) -> bool:
        row = self._control.execute(sql.SQL("SELECT EXISTS (SELECT FROM {}) AS yes").format(self.identifier)).fetchone()
        return not (row and row["yes"])

    def close(self) -> None:
        self._writer.close()
        self._control.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self.identifier))

    def _connect(self) -> Connection:
        session = connect(self._url, name="cinema")
        session.execute("SET default_transaction_read_only = off; SET idle_session_timeout = 0")
        session.execute("SET client_encoding = UTF8; SET statement_timeout = 0; SET array_nulls = on")
        return session

    def _create(self) -> None:
        required = (*self._shape.key, self._shape.cursor)
        columns = [
            sql.SQL("{} {} {}").format(
                sql.Identifier(name), raw(kind.definition), raw("NOT NULL" if name in required else "")
            )
            for name, kind in self.columns.items()
        ]
        self._control.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self.identifier))
        self._control.execute(sql.SQL("CREATE TABLE {} ({})").format(self.identifier, sql.SQL(", ").join(columns)))
        key = sql.SQL(", ").join(map(sql.Identifier, self._shape.key))
        with suppress(psycopg.errors.UndefinedObject):  # a type without order: the pipeline must be refused
            self._control.execute(sql.SQL("ALTER TABLE {} ADD UNIQUE ({})").format(self.identifier, key))

    # -- rows ---------------------------------------------------------------------------------------------------------

    def insert(self, row: Mapping[str, str | None]) -> None:
        """A row with these values; one that the table refuses is left out."""
        self._rows += 1
        given = [*self._values(row), *self._tick()]
        statement = sql.SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT DO NOTHING").format(
            self.identifier,
            sql.SQL(", ").join(map(sql.Identifier, [ROW_ID, *(name for name, _ in given)])),
            sql.SQL(", ").join([sql.Literal(self._rows), *(value for _, value in given)]),
        )
        with suppress(*_REFUSED):
            self._writer.execute(statement)

    def update(self, place: int, row: Mapping[str, str | None]) -> None:
        """Other values for one row; its cursor grows."""
        self._update(place, self._values(row))

    def respell(self, place: int) -> None:
        """Keys that are equal and not identical, where their types have such values."""
        spelled = [name for name in self._shape.key if self.columns[name].name in _RESPELLED]
        self._update(
            place,
            [(name, raw(_RESPELLED[self.columns[name].name]).format(sql.Identifier(name))) for name in spelled],
        )

    def touch(self) -> None:
        """The cursor of every row grows, each to its own value."""
        for row in self._control.execute(sql.SQL("SELECT {} AS id FROM {}").format(_ID, self.identifier)).fetchall():
            self._update(row["id"], [])

    def delete(self, place: int) -> None:
        statement = sql.SQL("DELETE FROM {0} WHERE {1} = (SELECT {1} FROM {0} WHERE {1} >= {2} ORDER BY 1 LIMIT 1)")
        self._writer.execute(statement.format(self.identifier, _ID, sql.Literal(place)))

    def _update(self, place: int, changes: Sequence[Change]) -> None:
        given = [*changes, *self._tick()]
        if not given:
            return
        assigned = [sql.SQL("{} = {}").format(sql.Identifier(name), value) for name, value in given]
        statement = sql.SQL(
            "UPDATE {0} SET {2} WHERE {1} = (SELECT {1} FROM {0} WHERE {1} >= {3} ORDER BY 1 LIMIT 1)"
        ).format(self.identifier, _ID, sql.SQL(", ").join(assigned), sql.Literal(place))
        with suppress(*_REFUSED):
            self._writer.execute(statement)

    def _values(self, row: Mapping[str, str | None]) -> list[Change]:
        return [(name, _cast(text, self.columns[name])) for name, text in row.items()]

    def _tick(self) -> list[Change]:
        """The next value of the cursor; none in a table without a cursor."""
        name = self._shape.cursor
        if name is None:
            return []
        kind = self.columns[name]
        self._ticks += 1
        if kind.name in CLOCKS:
            return [(name, sql.SQL("CAST({} AS {})").format(raw(CLOCKS[kind.name]), raw(kind.type)))]
        assert kind.nth is not None
        return [(name, _cast(str(self._ticks) if kind.name in COUNTERS else kind.nth(self._ticks), kind))]

    # -- changes of the table -----------------------------------------------------------------------------------------

    def add(self, name: str, kind: Kind) -> bool:
        added = self._alter(sql.SQL("ADD COLUMN {} {}").format(sql.Identifier(name), raw(kind.definition)))
        if added:
            self.columns[name] = kind
        return added

    def drop(self, name: str) -> bool:
        dropped = self._alter(sql.SQL("DROP COLUMN {}").format(sql.Identifier(name)))
        if dropped:
            del self.columns[name]
        return dropped

    def rename(self, names: Mapping[str, str]) -> bool:
        """Rename columns at the same time, so that two can swap their names."""
        spare = {old: f"spare name {number}" for number, old in enumerate(names)}
        steps = [*spare.items(), *((spare[old], new) for old, new in names.items())]
        renamed = self._alter(
            *(sql.SQL("RENAME COLUMN {} TO {}").format(sql.Identifier(old), sql.Identifier(new)) for old, new in steps)
        )
        if renamed:
            self.columns = {names.get(name, name): kind for name, kind in self.columns.items()}
        return renamed

    def retype(self, name: str) -> bool:
        """Change the type of a column to text."""
        change = sql.SQL('ALTER COLUMN {0} TYPE text COLLATE "default" USING CAST({0} AS text)')
        changed = self._alter(change.format(sql.Identifier(name)))
        if changed:
            self.columns[name] = BY_NAME["text"]
        return changed

    def disappear(self, seconds: float) -> threading.Timer:
        """Rename the table and, after so many seconds, back again."""
        there, absent = self.identifier, sql.Identifier("ugc", _NAME_FOR_A_WHILE)
        renamed = sql.SQL("ALTER TABLE {} RENAME TO {}")
        self._control.execute(renamed.format(there, sql.Identifier(_NAME_FOR_A_WHILE)))

        def restore() -> None:
            with self._connect() as session:
                session.execute(renamed.format(absent, sql.Identifier(self._shape.table)))

        timer = threading.Timer(seconds, restore)
        timer.start()
        return timer

    def _alter(self, *actions: sql.Composable) -> bool:
        """Change the table; False if a reader holds it or its data does not allow the change."""
        try:
            with self._control.transaction():
                self._control.execute("SET LOCAL lock_timeout = '300ms'")
                for action in actions:
                    self._control.execute(sql.SQL("ALTER TABLE {} {}").format(self.identifier, action))
        except (psycopg.OperationalError, psycopg.DataError, psycopg.ProgrammingError, psycopg.NotSupportedError):
            return False
        return True


def _cast(text: str | None, kind: Kind) -> sql.Composed:
    return sql.SQL("CAST(CAST({} AS text) AS {})").format(sql.Literal(text), raw(kind.type))
