"""Writes docs/types.md, how every type is carried in each role and lane: `python -m tests.type_matrix`."""

import itertools
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from psycopg import sql

from tests.helpers import kinds as every
from tests.helpers.folders import server_folder
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

Role = Literal["column", "key", "cursor"]
Lane = Literal["copy", "rows", "frames"]
ROLES: tuple[Role, ...] = ("column", "key", "cursor")
LANES: Mapping[Lane, str | None] = {"copy": None, "rows": TASKS["rows seen"], "frames": TASKS["frames"]}
# Cursors that grow with time by their nature: any other needs an option
NATIVE = (
    *("smallint", "integer", "bigint", "date", "timestamp without time zone", "timestamp(3) without time zone"),
    *("timestamp with time zone", "timestamp(0) with time zone"),
)

Result = Literal["exact", "refused", "wrong"]


@dataclass(frozen=True)
class Cell:
    """What happens to a type in one role and lane."""

    result: Result
    sentence: str = ""  # of the refusal, without the names of table, column and type


EXACT = Cell("exact")
Cells = Mapping[tuple[Role, Lane], Cell]


# -- the findings -----------------------------------------------------------------------------------------------------


class Examiner:
    """Runs a pipeline for a type in a role and a lane."""

    def __init__(self, connection: Connection, settings: Settings) -> None:
        self.kinds = every.define(connection)
        self._connection = connection
        self._settings = settings
        self._oracle = Oracle(None, connection, TARGET)
        self._present: tuple[Sequence[Kind], bool] | None = None  # the types in the source table, and if NULL is not

    def all_cells(self) -> dict[Kind, Cells]:
        columns = {lane: self.columns(self.kinds, lane) for lane in LANES}
        return {
            kind: {
                **{("column", lane): columns[lane][kind] for lane in LANES},
                **{(role, lane): self.cell(kind, role, lane) for role in ROLES[1:] for lane in LANES},
            }
            for kind in self.kinds
        }

    def columns(self, kinds: Sequence[Kind], lane: Lane) -> dict[Kind, Cell]:
        """All types as columns of one table; if that fails, each in a table of its own."""
        self._create_source(kinds)
        if self._ended(lane, key_columns=["id"]) == []:
            return dict.fromkeys(kinds, EXACT)
        return {kind: self.cell(kind, "column", lane) for kind in kinds}

    def cell(self, kind: Kind, role: Role, lane: Lane) -> Cell:
        self._create_source([kind], required=role != "column")
        match role:
            case "column":
                return _cell(kind, self._ended(lane, key_columns=["id"]))
            case "key":
                return _cell(kind, self._ended(lane, key_columns=["c0"]))
            case "cursor":
                options = {"cursor_is_monotonic": kind.name not in NATIVE}
                cursor = {"mode": "incremental", "incremental_key": "c0", "key_columns": ["id"]}
                return _cell(kind, self._ended(lane, options=options, **cursor))

    def _ended(
        self, lane: Lane, *, options: Mapping[str, Any] | None = None, **fields: Any
    ) -> VitrineError | list[str]:
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
        try:
            return run(self._connection, self._settings, pipeline).error or self._oracle.differences("id")
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:  # noqa: BLE001 – a panic of polars is not an Exception; the page names its type
            return [f"the run raised {type(exc).__name__}"]

    def _create_source(self, kinds: Sequence[Kind], *, required: bool = False) -> None:
        """A table with the samples of each type, and a row of NULLs unless a value is required."""
        if self._present == (kinds, required):
            return
        columns = {f"c{number}": kind for number, kind in enumerate(kinds)}
        definitions = [
            sql.SQL("{} {}").format(sql.Identifier(name), raw(kind.definition)) for name, kind in columns.items()
        ]
        self._connection.execute("DROP TABLE IF EXISTS ugc.typed")
        created = sql.SQL("CREATE TABLE ugc.typed (id bigint PRIMARY KEY, {})").format(sql.SQL(", ").join(definitions))
        self._connection.execute(created)
        count = max(len(kind.samples) for kind in kinds)
        for number in range(min(count, 3) if required else count + 1):
            row = sql.SQL(", ").join([sql.Literal(number), *(_value(kind, number) for kind in kinds)])
            self._connection.execute(sql.SQL("INSERT INTO ugc.typed VALUES ({})").format(row))
        self._oracle.expect("SELECT * FROM ugc.typed", {"id": BY_NAME["bigint"], **columns})
        self._present = kinds, required


def _value(kind: Kind, number: int) -> sql.Composed:
    text = kind.samples[number] if number < len(kind.samples) else None
    return sql.SQL("CAST(CAST({} AS text) AS {})").format(sql.Literal(text), raw(kind.type))


def _cell(kind: Kind, ended: VitrineError | list[str]) -> Cell:
    if isinstance(ended, VitrineError):
        return Cell("refused", f"`{ended.code}`: {_general(str(ended), kind)}")
    return Cell("wrong", "; ".join(ended)) if ended else EXACT


def _general(sentence: str, kind: Kind) -> str:
    """The sentence without the names of this test."""
    named = sentence.replace("'c0'", "'…'").replace(TARGET, "…")
    return re.sub(r"of type .*?(?=,|;| which|$)", "of type …", named).replace(kind.type, "…")


# -- the page ---------------------------------------------------------------------------------------------------------

_HEAD = f"""# Types

Generated by `make types` from runs on PostgreSQL {VERSION}; do not edit. A test compares the page with what it finds.

## How values are carried

Vitrine asks the catalog of the source for the type of every column. Types of `pg_catalog`, and types of extensions
that are installed in the target's database, are carried as they are: a mart that Vitrine creates has the same type, and
every value has the same image there, with its scale, its infinities and the bounds of its arrays. A value passes
through a Python transform unchanged unless the transform changes it.

Types that the owner of the source defines are not created in the target, because a type can execute its owner's
functions. The reader converts them in its own session:

- an enum becomes `text`, a domain its base type, a composite value or record `jsonb` (the value of `to_jsonb`);
- arrays of them become `text[]`, an array of the base type, and `jsonb`;
- types that name an object of one database (`regclass` and its like), types without a binary format, `int2vector`,
  `oidvector`, ranges and base types of the source's owner become `text`: what the type's output function returns. An
  object outside `pg_catalog` is named with its schema, whatever the search_path of the source is.

NULL stays NULL. Types whose values only the server creates (`pg_node_tree`, `gtsvector` and its like) are not listed.

## How to read the table

A **column** is any column that is neither key nor cursor. A **key** is a column of `key_columns`; a **cursor** is the
`incremental_key`. Each of them was loaded in three lanes: *copy* (no transform), *rows* (a row transform) and *frames*
(a frame transform), a row at a time, and each row from another snapshot.

- **exact**: the mart equals the query. A cell that names no lane is about all three.
- **exact, monotonic**: the same, with `cursor_is_monotonic: true`; without it, such a cursor is refused.
- **refused**: the run ends before it writes, with the error of that number below the table.
"""


def render(found: Mapping[Kind, Cells]) -> str:
    """The page: a table for each group of types, and the errors that they refer to."""
    sentences = list(
        dict.fromkeys(cell.sentence for cells in found.values() for cell in cells.values() if cell.sentence)
    )
    lines = [_HEAD]
    for group, kinds in itertools.groupby(found, key=lambda kind: kind.group):
        lines += [f"## {group}", "", "| Type | In the mart | Column | Key | Cursor |", "|---|---|---|---|---|"]
        lines += [_line(kind, found[kind], sentences) for kind in kinds]
        lines.append("")
    lines += ["## Errors", ""]
    lines += [f"{number}. {sentence}" for number, sentence in enumerate(sentences, 1)]
    return "\n".join(lines) + "\n"


def _line(kind: Kind, cells: Cells, sentences: Sequence[str]) -> str:
    name = kind.name if kind.name != kind.type else f"`{kind.name}`"
    shown = [_role(kind, role, cells, sentences) for role in ROLES]
    carrier = kind.carrier.removeprefix("public.")
    return f"| {' | '.join([name, f'`{carrier}`', *shown])} |"


def _role(kind: Kind, role: Role, cells: Cells, sentences: Sequence[str]) -> str:
    exact = "exact, monotonic" if role == "cursor" and kind.name not in NATIVE else "exact"
    shown = {lane: exact if cells[role, lane] == EXACT else _result(cells[role, lane], sentences) for lane in LANES}
    if len(set(shown.values())) == 1:
        return shown["copy"]
    return "; ".join(f"{lane}: {text}" for lane, text in shown.items())


def _result(cell: Cell, sentences: Sequence[str]) -> str:
    return f"{cell.result} ({sentences.index(cell.sentence) + 1})"


def cells(page: str) -> dict[tuple[str, Role, Lane], Cell]:
    """What a page says about each type, by its name."""
    errors = {int(number): text for number, text in re.findall(r"^(\d+)\. (.*)$", page, flags=re.MULTILINE)}
    found: dict[tuple[str, Role, Lane], Cell] = {}
    for line in page.splitlines():
        if line.startswith("| ") and not line.startswith("| Type "):
            name, _, *shown = line.removeprefix("| ").removesuffix(" |").split(" | ")
            for role, text in zip(ROLES, shown, strict=True):
                by_lane = dict(part.split(": ") for part in text.split("; ")) if ": " in text else {}
                for lane in LANES:
                    found[name.strip("`"), role, lane] = _read(by_lane.get(lane, text), errors)
    return found


def _read(shown: str, errors: Mapping[int, str]) -> Cell:
    refused = re.fullmatch(r"(refused|wrong) \((\d+)\)", shown)
    return (
        EXACT if refused is None else Cell("refused" if refused[1] == "refused" else "wrong", errors[int(refused[2])])
    )


# -- the command ------------------------------------------------------------------------------------------------------


@contextmanager
def _server() -> Generator[str]:
    with (
        server_folder("vitrine-types-") as folder,
        EmbeddedPostgres(folder, version=VERSION, port=free_port(), fast=True) as server,
    ):
        server.ensure_database("types")
        migrate(server.tcp_url("types"))
        yield server.tcp_url("types")


def write() -> Iterable[str]:
    """Write the page; returns the cells that are neither exact nor refused."""
    with _server() as url, connect(url, name="types") as connection:
        cinema.create_schema(connection)
        found = Examiner(connection, Settings.model_validate({"database_url": url})).all_cells()
    PAGE.write_text(render(found), "utf-8")
    for kind, cells in found.items():
        yield from (
            f"{kind.name} {role} {lane}: {cell.sentence}"
            for (role, lane), cell in cells.items()
            if cell.result == "wrong"
        )


if __name__ == "__main__":
    raise SystemExit("\n".join(write()) or None)
