"""A small document store: keyed rows with versions, in one SQLite file that any process can open."""

import json
import sqlite3
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from vitrine.core.rows import Column, Key

_TABLES = """
    CREATE TABLE IF NOT EXISTS targets (name PRIMARY KEY, identity, columns, collection);
    CREATE TABLE IF NOT EXISTS kept (name PRIMARY KEY, collection);
    CREATE TABLE IF NOT EXISTS loads (collection PRIMARY KEY, pipeline, number, installation, version);
    CREATE TABLE IF NOT EXISTS documents (collection, key, version, sequence, document, PRIMARY KEY (collection, key));
    CREATE TABLE IF NOT EXISTS rules (name, field, refused);
"""


@dataclass(frozen=True)
class Document:
    """A row with its key; no document: the row is deleted, and the key keeps its version."""

    key: Key
    document: dict[str, str | None] | None


@dataclass(frozen=True)
class StoredTarget:
    """A name that users read, and the collection behind it."""

    identity: str
    columns: tuple[Column, ...]
    collection: str


@dataclass(frozen=True)
class Reply:
    """The answer to a request, row by row."""

    written: int
    existed: int  # documents that were there before
    refused: tuple[tuple[Key, str], ...]  # keys of rows that break a rule, and the field of the rule


class VersionConflict(Exception):
    """A newer version of a row, or of a load, is stored."""


class NoSuchTarget(Exception):
    """The target is missing, or it is another one than expected."""


Wait = Callable[[], None]
"""Called while another session holds the file; it sleeps, or raises where the request should end."""


class Storage:
    """Requests to the documents of a folder; each is one transaction, and keeps nothing open."""

    def __init__(self, folder: Path, wait: Wait) -> None:
        self._folder = folder
        self._wait = wait

    # -- targets --------------------------------------------------------------------------------------------------

    def target(self, name: str) -> StoredTarget | None:
        with self._request() as database:
            return _target(database, name)

    def create(self, name: str, columns: Sequence[Column]) -> StoredTarget:
        """The target, created unless it exists, with these columns added to its own."""
        with self._request() as database:
            found = _target(database, name)
            known = {column.name: column for column in (*columns, *(found.columns if found else ()))}
            identity, collection = (found.identity, found.collection) if found else (uuid4().hex, uuid4().hex)
            _save_target(database, name, StoredTarget(identity, tuple(known.values()), collection))
            return _target(database, name) or StoredTarget(identity, (), collection)

    def documents(self, name: str) -> list[Document]:
        """Everything that users see under a name."""
        with self._request() as database:
            found = _target(database, name)
            if found is None:
                return []
            rows = database.execute("SELECT key, document FROM documents WHERE collection = ?", [found.collection])
            return [Document(tuple(json.loads(key)), json.loads(text)) for key, text in rows if text is not None]

    def staged(self, collection: str) -> list[Document]:
        """Everything that a load has staged."""
        with self._request() as database:
            rows = database.execute("SELECT key, document FROM documents WHERE collection = ?", [collection])
            return [Document(tuple(json.loads(key)), json.loads(text)) for key, text in rows if text is not None]

    # -- requests of a unit ---------------------------------------------------------------------------------------

    def put(self, name: str, identity: str, documents: Iterable[Document], version: int, sequence: int) -> Reply:
        """Write or delete documents that users see; NoSuchTarget unless the target is the one expected."""
        with self._request() as database:
            found = _target(database, name)
            if found is None or found.identity != identity:
                raise NoSuchTarget
            return _put(database, name, found.collection, documents, version, sequence)

    def begin(self, collection: str, load: tuple[str, int], installation: str, version: int, sequence: int) -> None:
        """A unit of a load begins: what an earlier attempt at the same unit has left is removed."""
        with self._request() as database:
            _take_load(database, collection, load, installation, version)
            leftover = "DELETE FROM documents WHERE collection = ? AND sequence = ? AND version < ?"
            database.execute(leftover, [collection, sequence, version])

    def stage(self, name: str, collection: str, documents: Iterable[Document], version: int, sequence: int) -> Reply:
        """Write documents of a load; VersionConflict once a newer unit of it has begun, or it is published."""
        with self._request() as database:
            newest = database.execute("SELECT version FROM loads WHERE collection = ?", [collection]).fetchone()
            if newest is None or newest[0] > version:
                raise VersionConflict
            return _put(database, name, collection, documents, version, sequence)

    # -- loads ----------------------------------------------------------------------------------------------------

    def is_staged(self, collection: str) -> bool:
        with self._request() as database:
            found = "SELECT 1 FROM loads WHERE collection = ?1 UNION SELECT 1 FROM kept WHERE collection = ?1"
            return database.execute(found, [collection]).fetchone() is not None

    def publish(
        self,
        name: str,
        collection: str,
        expected: str | None,
        columns: Sequence[Column],
        check: Callable[[int, int, int], None],
    ) -> tuple[StoredTarget, Reply]:
        """Show a load under the name, if the name still shows the expected collection; VersionConflict otherwise.

        What it showed before is kept until the next load is shown.
        `check` gets the number of documents staged, shown before, and vanished; what it raises changes nothing.
        """
        with self._request() as database:
            found = _target(database, name)
            if found is not None and found.collection == collection:
                return found, Reply(0, 0, ())
            if found is None and expected is not None:
                raise NoSuchTarget
            if found is not None and found.collection != expected:
                raise VersionConflict
            staged = _keys(database, collection)
            before = _keys(database, expected) if expected else set[str]()
            check(len(staged), len(before), len(before - staged))
            shown = StoredTarget(found.identity if found else uuid4().hex, tuple(columns), collection)
            _save_target(database, name, shown)
            database.execute("DELETE FROM loads WHERE collection = ?", [collection])
            _keep(database, name, expected, collection)
            return shown, Reply(len(staged), len(before - staged), ())

    def discard(self, collection: str) -> None:
        """Remove a load that is not shown under any name."""
        with self._request() as database:
            _discard(database, collection)

    def loads(self, installation: str) -> list[tuple[str, str, int]]:
        """Loads of an installation: collection, pipeline and number."""
        with self._request() as database:
            found = "SELECT collection, pipeline, number FROM loads WHERE installation = ? ORDER BY 1"
            return database.execute(found, [installation]).fetchall()

    # -- one request ----------------------------------------------------------------------------------------------

    @contextmanager
    def _request(self) -> Generator[sqlite3.Connection]:
        database = self._open()
        try:
            yield database
            database.execute("COMMIT")
        finally:
            database.close()

    def _open(self) -> sqlite3.Connection:
        if not self._folder.is_dir():
            raise sqlite3.OperationalError("the folder is missing")
        while True:
            database = sqlite3.connect(self._folder / "documents.sqlite", timeout=0, isolation_level=None)
            try:
                database.execute("PRAGMA journal_mode = wal")  # readers and the writer do not wait for one another
                # a crash of the process loses nothing; only one of the machine would
                database.execute("PRAGMA synchronous = off")
                database.execute("BEGIN IMMEDIATE")
                for statement in filter(None, map(str.strip, _TABLES.split(";"))):
                    database.execute(statement)
                return database
            except sqlite3.OperationalError as exc:
                database.close()
                if "locked" not in str(exc):
                    raise
            self._wait()


def _target(database: sqlite3.Connection, name: str) -> StoredTarget | None:
    found = database.execute("SELECT identity, columns, collection FROM targets WHERE name = ?", [name]).fetchone()
    if found is None:
        return None
    return StoredTarget(found[0], tuple(Column(*one) for one in json.loads(found[1])), found[2])


def _save_target(database: sqlite3.Connection, name: str, target: StoredTarget) -> None:
    columns = json.dumps([(column.name, column.type) for column in target.columns])
    database.execute("REPLACE INTO targets VALUES (?, ?, ?, ?)", [name, target.identity, columns, target.collection])


def _take_load(
    database: sqlite3.Connection, collection: str, load: tuple[str, int], installation: str, version: int
) -> None:
    shown = database.execute("SELECT 1 FROM targets WHERE collection = ?", [collection]).fetchone()
    newest = database.execute("SELECT version FROM loads WHERE collection = ?", [collection]).fetchone()
    kept = database.execute("SELECT 1 FROM kept WHERE collection = ?", [collection]).fetchone()
    if shown is not None or kept is not None or (newest is not None and newest[0] > version):
        raise VersionConflict
    database.execute("REPLACE INTO loads VALUES (?, ?, ?, ?, ?)", [collection, *load, installation, version])


def _keep(database: sqlite3.Connection, name: str, replaced: str | None, shown: str) -> None:
    """Keep the collection that was replaced, in place of the one that was kept before."""
    for (earlier,) in database.execute("SELECT collection FROM kept WHERE name = ?", [name]).fetchall():
        if earlier != shown:
            database.execute("DELETE FROM documents WHERE collection = ?", [earlier])
    database.execute("DELETE FROM kept WHERE name = ?", [name])
    if replaced is not None:
        database.execute("INSERT INTO kept VALUES (?, ?)", [name, replaced])


def _put(
    database: sqlite3.Connection,
    name: str,
    collection: str,
    documents: Iterable[Document],
    version: int,
    sequence: int,
) -> Reply:
    rules: list[tuple[str, str]] = database.execute(
        "SELECT field, refused FROM rules WHERE name = ?", [name]
    ).fetchall()
    written, existed = 0, 0
    refused: list[tuple[Key, str]] = []
    for one in documents:
        if field := next((field for field, value in rules if one.document and one.document.get(field) == value), None):
            refused.append((one.key, field))
            continue
        key = json.dumps(one.key)
        stored: Any = database.execute(
            "SELECT version, document FROM documents WHERE collection = ? AND key = ?", [collection, key]
        ).fetchone()
        if stored is not None and stored[0] > version:
            raise VersionConflict
        document = None if one.document is None else json.dumps(one.document)
        database.execute(
            "REPLACE INTO documents VALUES (?, ?, ?, ?, ?)", [collection, key, version, sequence, document]
        )
        written += 1
        existed += stored is not None and stored[1] is not None
    return Reply(written, existed, tuple(refused))


def _keys(database: sqlite3.Connection, collection: str) -> set[str]:
    found = "SELECT key FROM documents WHERE collection = ? AND document IS NOT NULL"
    return {key for (key,) in database.execute(found, [collection])}


def _discard(database: sqlite3.Connection, collection: str) -> None:
    if database.execute("SELECT 1 FROM targets WHERE collection = ?", [collection]).fetchone() is None:
        database.execute("DELETE FROM loads WHERE collection = ?", [collection])
        database.execute("DELETE FROM kept WHERE collection = ?", [collection])
        database.execute("DELETE FROM documents WHERE collection = ?", [collection])
