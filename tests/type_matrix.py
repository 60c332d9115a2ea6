"""Writes docs/types.md, how every type is carried in each role and lane: `python -m tests.type_matrix`."""

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psycopg
from psycopg import sql

from tests.helpers import kinds as every
from tests.helpers.kinds import BY_NAME, Kind
from tests.helpers.lanes import TASKS
from tests.helpers.oracle import Oracle
from tests.helpers.processes import free_port
from tests.helpers.running import create, run
from vitrine.demo import cinema
from vitrine.embedded import EmbeddedPostgres
from vitrine.errors import VitrineError
from vitrine.postgres import Connection, connect, raw
from vitrine.settings import Settings
from vitrine.store.migrate import migrate

PAGE = Path(__file__).parents[1] / "docs" / "types.md"
VERSION = 18
"""The page is about this PostgreSQL."""

TARGET = "analytics.typed"
BIGINT = BY_NAME["bigint"]

Role = Literal["column", "key", "cursor"]
ROLES: tuple[Role, ...] = ("column", "key", "cursor")
LANES: Mapping[str, str | None] = {"copy": None, "rows": TASKS["rows seen"], "frames": TASKS["frames"]}
# Cursors that grow with time by their nature: any other needs an option
NATIVE = (
    *("smallint", "integer", "bigint", "date", "timestamp without time zone", "timestamp(3) without time zone"),
    *("timestamp with time zone", "timestamp(0) with time zone"),
)


@dataclass(frozen=True)
class Cell:
    """What happens to a type in one role and lane."""

    result: Literal["exact", "refused", "wrong"]
    sentence: str = ""


EXACT = Cell("exact")
Cells = dict[tuple[Role, str], Cell]


class Examiner:
    """Runs a pipeline for every type, role and lane."""

    def __init__(self, url: str, connection: Connection, settings: Settings) -> None:
        self.kinds = every.define(connection)
        self._connection = connection
        self._settings = settings
        self._oracle = Oracle(url, connection, TARGET)

    def examine(self, kinds: Sequence[Kind] | None = None, roles: Sequence[Role] = ROLES) -> dict[Kind, Cells]:
        chosen = kinds or self.kinds
        found: dict[Kind, Cells] = {kind: {} for kind in chosen}
        if "column" in roles:
            for lane, (kind, cell) in itertools.product(LANES, enumerate(chosen)):
                del cell, kind, lane
            for lane in LANES:
                for kind, cell in self._columns(chosen, lane).items():
                    found[kind]["column", lane] = cell
        for kind in chosen if set(roles) & {"key", "cursor"} else ():
            self._create_source({"it": kind}, required=True)
            self._expect({"it": kind})
            for role, lane in itertools.product(("key", "cursor"), LANES):
                if role in roles:
                    found[kind][role, lane] = self._run(kind, role, lane)
        return found

    # -- a type in one role -------------------------------------------------------------------------------------------

    def _columns(self, kinds: Sequence[Kind], lane: str) -> dict[Kind, Cell]:
        """All types as columns of one table; if that fails, each in a table of its own."""
        columns = {f"c{number}": kind for number, kind in enumerate(kinds)}
        self._create_source(columns)
        self._expect(columns)
        if self._ended(lane, key_columns=["id"]) == []:
            return dict.fromkeys(kinds, EXACT)
        found: dict[Kind, Cell] = {}
        for kind in kinds:
            self._create_source({"it": kind})
            self._expect({"it": kind})
            found[kind] = _cell(kind, self._ended(lane, key_columns=["id"]))
        return found

    def _run(self, kind: Kind, role: Role, lane: str) -> Cell:
        if role == "key":
            return _cell(kind, self._ended(lane, key_columns=["it"]))
        return _cell(
            kind,
            self._ended(
                lane,
                mode="incremental",
                incremental_key="it",
                key_columns=["id"],
                options={"cursor_is_monotonic": kind.name not in NATIVE},
            ),
        )

    def _ended(self, lane: str, *, options: Mapping[str, Any] | None = None, **fields: Any) -> VitrineError | list[str]:
        """Load a new mart, a row at a time, each from another snapshot; returns the error or the differences."""
        self._connection.execute("DELETE FROM etl.etl_pipelines; DROP TABLE IF EXISTS analytics.typed")
        try:
            pipeline = create(
                self._connection,
                self._settings,
                source_query="SELECT * FROM ugc.typed",
                target_table=TARGET,
                python_task=LANES[lane],
                batch_size=1,
                options={"snapshot_max_age": "0s", **(options or {})},
                **fields,
            )
        except VitrineError as exc:
            return exc
        return run(self._connection, self._settings, pipeline).error or self._oracle.differences("id")

    # -- source -------------------------------------------------------------------------------------------------------

    def _create_source(self, columns: Mapping[str, Kind], *, required: bool = False) -> None:
        """A table with the samples of each type, a number, and a row of NULLs unless a value is required."""
        definitions = [
            sql.SQL("{} {}").format(sql.Identifier(name), raw(kind.definition)) for name, kind in columns.items()
        ]
        self._connection.execute("DROP TABLE IF EXISTS ugc.typed")
        created = sql.SQL("CREATE TABLE ugc.typed (id bigint PRIMARY KEY, {})").format(sql.SQL(", ").join(definitions))
        self._connection.execute(created)
        count = max(len(kind.samples) for kind in columns.values())
        for number in range(min(count, 3) if required else count + 1):
            values = [
                sql.SQL("CAST(CAST({} AS text) AS {})").format(
                    sql.Literal(kind.samples[number] if number < len(kind.samples) else None), raw(kind.type)
                )
                for kind in columns.values()
            ]
            row = sql.SQL(", ").join([sql.Literal(number), *values])
            self._connection.execute(sql.SQL("INSERT INTO ugc.typed VALUES ({})").format(row))

    def _expect(self, columns: Mapping[str, Kind]) -> None:
        self._oracle.expect("SELECT * FROM ugc.typed", {"id": BIGINT, **columns})


def _cell(kind: Kind, ended: VitrineError | list[str]) -> Cell:
    if isinstance(ended, VitrineError):
        sentence = str(ended).replace(TARGET, "").replace(kind.type, "this type").replace("'it'", "'column'")
        return Cell("refused", f"`{ended.code}`: {sentence}")
    return Cell("wrong", "; ".join(ended)) if ended else EXACT
