"""The cases of the memory connector: its documents and files seen, changed and broken from outside."""

import importlib
import itertools
import json
import sqlite3
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from vitrine.core.rows import Column, Key, Kind, kind_of
from vitrine.errors import TransientError
from vitrine_testing import REFUSED, SAMPLES, Fault, NotSimulated, Texts

SETTLED = "2999-12-31 00:00:00+00"
_numbers = itertools.count(1)


class MemoryDocuments:
    """The SQLite file behind `mem:` targets, without the connector's code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def database(self) -> Generator[sqlite3.Connection]:
        opened = sqlite3.connect(self.folder / "documents.sqlite", timeout=10, isolation_level=None)
        try:
            yield opened
        finally:
            opened.close()

    def rows(self, target: str) -> dict[Key, Texts]:
        found = """SELECT d.key, d.document FROM documents d JOIN targets t USING (collection)
                    WHERE t.name = ? AND d.document IS NOT NULL"""
        with self.database() as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'targets'").fetchone():
                return {}
            rows = database.execute(found, [_name(target)]).fetchall()
        return {tuple(json.loads(key)): json.loads(document) for key, document in rows}

    def change(self, target: str, key: Key, row: Texts | None) -> None:
        document = None if row is None else json.dumps(row)
        change = """UPDATE documents SET document = ? WHERE key = ?
                       AND collection = (SELECT collection FROM targets WHERE name = ?)"""
        with self.database() as database:
            changed = database.execute(change, [document, json.dumps(key), _name(target)]).rowcount
        assert changed == 1

    def remove(self, target: str) -> None:
        with self.database() as database:
            database.execute("DELETE FROM targets WHERE name = ?", [_name(target)])


class MemorySinkCase:
    """A SinkCase; the connector must be installed in this process."""

    connector = "memory"
    refused: Mapping[str, Collection[str]] = MappingProxyType({})

    def __init__(self, folder: Path) -> None:
        self.documents = MemoryDocuments(folder)
        self._folder = folder

    @property
    def types(self) -> Collection[str]:
        return [name for name in SAMPLES if kind_of(name) is not Kind.OTHER]

    def settings(self) -> Mapping[str, str]:
        return {"VITRINE_MEMORY_PATH": str(self._folder)}

    def target(self) -> str:
        return f"mem:t{next(_numbers)}"

    def rows(self, target: str) -> dict[Key, Texts]:
        return self.documents.rows(target)

    def change(self, target: str, key: Key, row: Texts | None) -> None:
        self.documents.change(target, key, row)

    @contextmanager
    def fault(self, target: str, fault: Fault) -> Generator[None]:
        with ExitStack() as ends:
            self._begin(target, fault, ends)
            yield

    def _begin(self, target: str, fault: Fault, ends: ExitStack) -> None:
        """Produce the fault; what ends it goes to `ends`."""
        match fault:
            case Fault.DOWN:
                ends.enter_context(down(self._folder))
            case Fault.REPLY_LOST:
                ends.enter_context(_next_request(_lose_reply))
            case Fault.APPLIED_LATE:
                late: list[Request] = []
                ends.callback(_apply, late)
                ends.enter_context(_next_request(lambda request: _postpone(request, late)))
            case Fault.ONE_ROW_REFUSED:
                database = ends.enter_context(self.documents.database())
                database.execute("INSERT INTO rules VALUES (?, 'note', ?)", [_name(target), REFUSED])
                ends.callback(database.execute, "DELETE FROM rules")
            case Fault.TARGET_GONE:
                self.documents.remove(target)
            case Fault.BLOCKED:
                database = ends.enter_context(self.documents.database())
                database.execute("BEGIN IMMEDIATE")
                ends.callback(database.execute, "ROLLBACK")


class MemorySourceCase:
    """A SourceCase over JSON files."""

    connector = "memory"
    types: Collection[str] = list(SAMPLES)

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def settings(self) -> Mapping[str, str]:
        return {"VITRINE_MEMORY_PATH": str(self._folder)}

    def create(self, columns: Sequence[Column], rows: Sequence[Texts]) -> Mapping[str, Any]:
        name = f"rows{next(_numbers)}"
        pairs = [(column.name, column.type) for column in columns]
        # rows below the year 3000 are settled, unless a test says otherwise
        self._write(name, {"columns": pairs, "rows": list(rows), "settled": SETTLED})
        return {"source_type": "memory", "source_query": name}

    def put(self, source: Mapping[str, Any], row: Texts) -> None:
        content = self._read(source["source_query"])
        content["rows"] = [one for one in content["rows"] if one["id"] != row["id"]] + [row]
        self._write(source["source_query"], content)

    def add_column(self, source: Mapping[str, Any]) -> None:
        content = self._read(source["source_query"])
        content["columns"].append(("added", "text"))
        content["rows"] = [{**row, "added": None} for row in content["rows"]]
        self._write(source["source_query"], content)

    @contextmanager
    def late_commit(self, source: Mapping[str, Any]) -> Generator[Texts]:
        now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}+00"
        row: Texts = {"id": "49", "note": "late", "modified": now}
        self._write(source["source_query"], {**self._read(source["source_query"]), "settled": now})
        yield row
        self.put(source, row)

    @contextmanager
    def fault(self, source: Mapping[str, Any], fault: Fault) -> Generator[None]:
        if fault is not Fault.DOWN:
            raise NotSimulated("a file is read at once")
        with down(self._folder):
            yield

    def _read(self, name: str) -> dict[str, Any]:
        return json.loads((self._folder / f"{name}.json").read_text("utf-8"))

    def _write(self, name: str, content: dict[str, Any]) -> None:
        (self._folder / f"{name}.json").write_text(json.dumps(content), "utf-8")


@contextmanager
def down(folder: Path) -> Generator[None]:
    """The folder is missing until the block ends."""
    hidden = folder.rename(folder.with_name(f"{folder.name}-hidden"))
    try:
        yield
    finally:
        hidden.rename(folder)


Request = Callable[[], object]


def _lose_reply(request: Request) -> None:
    request()
    raise TransientError("the reply was lost")


def _apply(late: list[Request]) -> None:
    for request in late:
        with suppress(Exception):  # no client is there to receive an answer
            request()


def _postpone(request: Request, late: list[Request]) -> None:
    late.append(request)
    raise TransientError("no reply in time")


@contextmanager
def _next_request(happens: Callable[[Request], None]) -> Generator[None]:
    """The next request that writes documents, and only that one, is handled by a function."""
    storage = importlib.import_module("vitrine_memory.storage").Storage
    waiting = [happens]

    def handled(original: Callable[..., Any]) -> Callable[..., Any]:
        def send(*arguments: Any) -> Any:
            return waiting.pop()(lambda: original(*arguments)) if waiting else original(*arguments)

        return send

    with patch.object(storage, "put", handled(storage.put)), patch.object(storage, "stage", handled(storage.stage)):
        yield


def _name(target: str) -> str:
    return target.removeprefix("mem:")
