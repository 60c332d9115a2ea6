"""Values that pass between sources, transforms, sinks and the loop."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from vitrine.core.checks import BaseCheck, CheckResult
from vitrine.errors import Place

Row = dict[str, Any]

Cursor = tuple[str, ...]
"""The last position read: the cursor columns in PostgreSQL's text format (UTC and ISO), so that nothing is rounded."""

Key = tuple[str, ...]
"""The key columns of a row in PostgreSQL's text format (UTC and ISO)."""

Bytes = bytes | bytearray | memoryview


class Lane(StrEnum):
    """A format in which rows are moved; each has its payload class."""

    COPY = "copy"
    TEXT = "text"
    ROWS = "rows"
    FRAMES = "frames"


class Kind(StrEnum):
    """General kind of a type; connectors map it to their own types."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "float"
    DECIMAL = "decimal"
    TEXT = "text"
    BYTES = "bytes"
    UUID = "uuid"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    INTERVAL = "interval"
    JSON = "json"
    ARRAY = "array"
    OTHER = "other"


_KINDS = {
    "boolean": Kind.BOOLEAN,
    "smallint": Kind.INTEGER,
    "integer": Kind.INTEGER,
    "bigint": Kind.INTEGER,
    "oid": Kind.INTEGER,
    "real": Kind.FLOAT,
    "double precision": Kind.FLOAT,
    "numeric": Kind.DECIMAL,
    "text": Kind.TEXT,
    "character varying": Kind.TEXT,
    "character": Kind.TEXT,
    "bpchar": Kind.TEXT,
    "name": Kind.TEXT,
    "citext": Kind.TEXT,
    "bytea": Kind.BYTES,
    "uuid": Kind.UUID,
    "date": Kind.DATE,
    "time without time zone": Kind.TIME,
    "time with time zone": Kind.TIME,
    "timestamp without time zone": Kind.TIMESTAMP,
    "timestamp with time zone": Kind.TIMESTAMPTZ,
    "interval": Kind.INTERVAL,
    "json": Kind.JSON,
    "jsonb": Kind.JSON,
}

_SYNONYMS = {
    "bool": "boolean",
    "int": "integer",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "decimal": "numeric",
    "varchar": "character varying",
    "char": "character",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "time": "time without time zone",
    "timetz": "time with time zone",
}

_MODIFIER = re.compile(r"\s*\([^)]*\)")


def bare_type(type_name: str) -> str:
    """The type without length, scale and precision, under the name that format_type() returns."""
    bare = _MODIFIER.sub("", type_name).strip()
    return _SYNONYMS.get(bare, bare)


def kind_of(type_name: str) -> Kind:
    bare = bare_type(type_name)
    return Kind.ARRAY if bare.endswith("[]") else _KINDS.get(bare, Kind.OTHER)


NUMBERS = frozenset({Kind.INTEGER, Kind.FLOAT, Kind.DECIMAL})
"""Kinds whose keys are ordered by value; all others are ordered by their text under "C"."""


@dataclass(frozen=True)
class Column:
    """A column of a batch. `type` is a PostgreSQL type name; every connector uses these names."""

    name: str
    type: str
    nullable: bool = True
    collation: str | None = None  # None: the type has none, or the database's default
    identical: bool = True  # equal values have equal text
    declared: str | None = None  # the type in the source, if `type` only carries its values (an enum as text)
    # a transform made its values: `type` is a guess, and the target's type reads their text
    inferred: bool = field(default=False, compare=False)

    @property
    def kind(self) -> Kind:
        return kind_of(self.type)


class Payload(Protocol):
    """Rows in one format. A sink's `encode` may return a payload class of its own."""

    @property
    def count(self) -> int: ...


@dataclass(frozen=True)
class BinaryRows:
    """Rows exactly as COPY BINARY sends them, without header and trailer."""

    data: Bytes
    count: int


@dataclass(frozen=True)
class TextRows:
    """Rows in COPY's text format, one line each: exact for every type of PostgreSQL."""

    data: bytes | bytearray
    count: int


@dataclass(frozen=True)
class PythonRows:
    """Rows as dictionaries of Python values."""

    rows: Sequence[Row]
    # the original text of each value, if known: an unchanged value is written as it was read
    origins: Any = field(default=None, compare=False, repr=False)

    @property
    def count(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class FrameRows:
    """Rows as one polars frame; `binary` is the same in COPY's binary format, set when a sink has encoded it."""

    frame: Any
    binary: Bytes | None = field(default=None, compare=False, repr=False)

    @property
    def count(self) -> int:
        return len(self.frame)


@dataclass(frozen=True)
class Position:
    """Where reading continues.

    A cursor of one element is inclusive (everything from that value on); a full one is exclusive. The pending pair
    belongs to cursors that are not times: `pending_cursor` becomes the cursor once every transaction that was open at
    `pending_since` has ended.
    """

    cursor: Cursor | None = None
    pending_cursor: Cursor | None = None
    pending_since: datetime | None = None

    @property
    def is_start(self) -> bool:
        return self.cursor is None and self.pending_cursor is None


START = Position()


@dataclass(frozen=True)
class Watermark:
    """How far a source is settled: nothing below the bound can still commit."""

    bound: str | None  # text of the column's type; None: the checkpoint does not move, or the column is not a time
    at: datetime | None  # start of the oldest open transaction; None: unknown for now
    lag: timedelta
    blocker: str | None = None  # the session that holds the watermark back for longer than is usual, if any


@dataclass(frozen=True)
class Batch:
    """Some rows of a read.

    `end` is the cursor of the last row read. `position` is what may be stored as checkpoint after it: `end`, held back
    by the watermark. Both come from the source's rows; transforms pass them on. `read` counts the source's rows.
    `refused` are rows of the read that the source could not deliver, and that its reject policy has accepted.
    """

    payload: Payload
    columns: tuple[Column, ...]
    end: Cursor | None
    position: Position
    snapshot: int = 1  # the read's snapshots are numbered from 1: a later one may repeat rows of an earlier
    read: int = 0
    deleted: tuple[Key, ...] = ()  # of rows that are marked as deleted, and are not in `payload`: to be deleted
    refused: "tuple[Reject, ...]" = ()

    @property
    def count(self) -> int:
        return self.payload.count


class KeyRange(NamedTuple):
    """Keys with low ≤ key < high, column by column: numbers by value, everything else by text under "C"."""

    low: Key | None = None  # None: from the first key
    high: Key | None = None  # None: to the last key


ALL_KEYS = KeyRange()

Selection = Sequence[Key] | KeyRange
"""Rows by their keys, or by one range of keys."""


class CursorRange(NamedTuple):
    """Values of a cursor column with start ≤ value < end, in the text format of its type."""

    start: str
    end: str
    below: str  # a value below `start`: a query with `> $1` excludes the value of $1 itself


@dataclass(frozen=True)
class Read:
    """A request to a source: changes, load and catch-up are all described by one."""

    lane: Lane
    order: tuple[str, ...]  # ascending; rows after `after` are read
    after: Position = START
    watermark: Watermark | None = None  # None: positions are not held back
    only: Selection | None = None  # keys are those of `order`
    limit: int | None = None
    skip_null: bool = False  # skip rows with NULL in the first column of the order
    complete: bool = False  # the whole result is read: a hint that sorting is faster than an index scan
    held_at: Position | None = None  # the checkpoint, if a resumed read starts after it; None: it is `after`
    unfiltered: bool = False  # a load: the query's own filter by the checkpoint hides nothing, even in a resumed read
    # a backfill: rows whose first column of the order is below this value, in its text format; None: to the end
    until: str | None = None
    filter_at: str | None = None  # the value of the query's own filter by the checkpoint; None: that of `after`

    @property
    def start(self) -> Position:
        """The position before the first batch."""
        return self.after if self.held_at is None else self.held_at


class Finding(NamedTuple):
    """A remark of a source or a sink about a definition, made before any row is moved."""

    code: str
    text: str
    column: str | None = None
    fatal: bool = False  # the pipeline cannot run
    place: Place | None = None  # in the query, if it concerns a part of it
    note: bool = False  # a property of every such pipeline, and no reason to change this one


class SourceInfo(NamedTuple):
    """A source as the system describes it now."""

    columns: tuple[Column, ...]
    lanes: tuple[Lane, ...]
    fingerprint: str = ""  # equal for equal work: the query, or the reader with its options
    rows_expected: int | None = None  # an estimate, for progress
    user_code: bool = False  # reading executes user code, which may kill the process
    findings: tuple[Finding, ...] = ()
    # why the query hides rows even if its own filter by the checkpoint is the lowest; None: it hides none
    filtered: str | None = None


class TargetInfo(NamedTuple):
    """A target as the system describes it now."""

    exists: bool
    key: tuple[str, ...]
    lanes: tuple[Lane, ...]  # in order of preference
    columns: tuple[Column, ...] = ()  # of an existing target
    identity: str | None = None  # changes if the target is recreated
    findings: tuple[Finding, ...] = ()
    # types of checks that the sink carries out before rows are visible; the engine refuses a definition with others
    checks: frozenset[str] = frozenset()
    written: tuple[str, ...] = ()  # of `columns`: those that the last run has written, as far as it is known
    rewrites: bool = False  # rows are written even if they are equal, and a load replaces the target as a whole
    guards_number: bool = False  # whether a load shrinks the target too much is decided by the numbers of rows alone


@dataclass(frozen=True)
class Stamp:
    """The number of a unit.

    `sequence` is the batch_seq it will have once saved; a repeated unit has the same one. `version` grows with every
    unit started under any token, failed ones included, so that a target can refuse an older write. It fits 63 bits.
    """

    token: int
    sequence: int
    version: int


UNITS_PER_TOKEN = 2**24


@dataclass(frozen=True)
class Counts:
    """What a unit, or a run, has done, in rows."""

    read: int = 0
    written: int = 0
    deleted: int = 0
    rejected: int = 0
    repeated: int = 0  # skipped, because their key was read again later
    staged: int = field(default=0, compare=False)  # staged in a load; published rows are counted as written

    def __add__(self, other: "Counts") -> "Counts":
        return self._combined(other, 1)

    def __sub__(self, other: "Counts") -> "Counts":
        return self._combined(other, -1)

    def _combined(self, other: "Counts", sign: int) -> "Counts":
        return Counts(
            self.read + sign * other.read,
            self.written + sign * other.written,
            self.deleted + sign * other.deleted,
            self.rejected + sign * other.rejected,
            self.repeated + sign * other.repeated,
            self.staged + sign * other.staged,
        )


class Reject(NamedTuple):
    """A row that does not fit the target; `row` is its JSON text, for the quarantine only."""

    key: str
    column: str | None  # None: the row as a whole breaks a rule
    code: str
    reason: str
    row: str


@dataclass(frozen=True)
class Written:
    """The result of a unit, and what must be stored together with the checkpoint."""

    counts: Counts = Counts()
    rejects: tuple[Reject, ...] = ()
    healed: tuple[str, ...] = ()  # keys of earlier rejects that this unit has written
    identity: str | None = None  # of the target
    facts: dict[str, Any] | None = None  # of the sink, at most 8 KB as JSON; None: unchanged
    checks: tuple[CheckResult, ...] = ()  # of the rows written; empty: none was checked


NOTHING_WRITTEN = Written()


class Step(StrEnum):
    """How a saved unit changes the stored state."""

    CHECKPOINT = "checkpoint"
    STAGED = "staged"
    PUBLISHED = "published"
    DISCARDED = "discarded"
    RESTORED = "restored"
    PROGRESS = "progress"
    BACKFILL = "backfill"


@dataclass(frozen=True)
class Entry:
    """One save: what was written, and where reading continues after it."""

    step: Step
    end: Cursor | None = None
    position: Position = START
    read: int = 0  # source rows of the unit
    started: float | None = None  # when its batch started, by time.monotonic; None: the unit is not a batch
    written: Written = NOTHING_WRITTEN
    restored: "KeptGeneration | None" = None  # with RESTORED: what is visible again
    refused: tuple[Reject, ...] = ()  # of the batch


class Saved(NamedTuple):
    """Requests that a save found in the pipeline's row."""

    pause_requested: bool = False
    reload_version: int | None = None  # the configuration whose throttle the run should use; None: as claimed


@dataclass(frozen=True)
class Generation:
    """A load under construction."""

    number: int
    cursor: Cursor | None = None  # the last row staged; None: nothing is staged yet
    position: Position = START  # becomes the checkpoint when the load is published
    rows: int = 0
    bound: str | None = None  # bound of the watermark before the first snapshot; None: there was no watermark
    fingerprint: str = ""
    age: timedelta = timedelta(0)
    outdated: bool = False  # started before the run was requested: another load must follow it


@dataclass(frozen=True)
class KeptGeneration:
    """A published generation, with the state of the reads that belongs to it."""

    number: int
    rows: int
    fingerprint: str
    position: Position
    cursor_types: str | None
    identity: str | None
    facts: dict[str, Any]

    def as_load(self) -> Generation:
        """What a sink is asked for."""
        return Generation(self.number, position=self.position, rows=self.rows, fingerprint=self.fingerprint)

    def with_state_of(self, state: "State") -> "KeptGeneration":
        return replace(
            self,
            position=state.position,
            cursor_types=state.cursor_types,
            identity=state.identity,
            facts=state.facts,
        )


class LoadInfo(NamedTuple):
    """What a sink needs to know to publish a load."""

    rows: int
    repeats: bool  # rows of one key may have been staged twice: the newest is kept
    max_delete_ratio: float | None  # None: any number of rows may be deleted
    # carried out on the staged rows; CheckFailed, before anything is visible, if one of severity fail does not pass
    checks: tuple[BaseCheck, ...] = ()


@dataclass(frozen=True)
class State:
    """The stored state of a pipeline's reads, as of the last open or save."""

    position: Position = START
    cursor_types: str | None = None  # the position is valid for these types; None before the first checkpoint
    generation: Generation | None = None  # a load under construction
    published: Generation | None = None  # the load that this claim has published
    identity: str | None = None
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    totals: Counts = Counts()  # of this claim
    checks: tuple[CheckResult, ...] = ()  # of this claim
    backfill: Cursor | None = None  # the last row that the claim's backfill has written; None: it has written none


class CommonForm(StrEnum):
    """How two values of a column are compared: each side brings its own value into this form, which loses nothing."""

    SAME = "same"  # one type on both sides: its text format
    OUTPUT = "output"  # two types without a closer form: the text format of each
    NUMBER = "number"  # as numeric, without zeros at the end
    FLOAT = "float"  # as double precision
    MOMENT = "moment"  # as timestamptz, under UTC
    TIME = "time"  # as timetz, under UTC
    TEXT = "text"
    PADDED = "padded"  # text without spaces at the end: those of a char(n) have no meaning
    JSON = "json"  # as jsonb
    PARSED = "parsed"  # as the type of the comparison, which reads several texts as one value


@dataclass(frozen=True)
class Compare:
    """What a digest covers: these columns, in the types of the source, by ranges of the key, which do not overlap.

    Each range is cut into at most `parts` of similar size. `control` names a column whose lowest and highest value are
    reported. Rows with a key in `skipped` are skipped. Keys are given in the common forms of their columns.
    """

    key: tuple[Column, ...]
    columns: tuple[Column, ...]
    ranges: tuple[KeyRange, ...] = (ALL_KEYS,)
    parts: int = 1
    control: Column | None = None
    forms: Mapping[str, CommonForm] = field(default_factory=dict[str, CommonForm])  # by column; others are SAME
    skipped: tuple[Key, ...] = ()
    marked: Column | None = None  # rows that this column marks as deleted are skipped
    only: tuple[Key, ...] | None = None  # these keys; None: every key of the ranges
    by_key: bool = False  # one digest for each key, with the hash of each column
    bounds_only: bool = False  # the parts alone, if the system can cut them without a digest: rows and hash are 0

    def form_of(self, column: Column) -> CommonForm:
        return self.forms.get(column.name, CommonForm.SAME)


@dataclass(frozen=True)
class Digest:
    """Count, hash and bounds of a range of rows; independent of their order."""

    range: KeyRange  # by key: it begins with the key
    rows: int
    hash: int
    lowest: str | None = None  # of the control column
    highest: str | None = None
    columns: tuple[int, ...] = ()  # by key: the hash of each compared column


def is_marked(text: str | None, column: Column) -> bool:
    """True, a number other than 0, or any other value that is not NULL."""
    if text is None:
        return False
    if column.kind is Kind.BOOLEAN:
        return text == "t"
    return text.strip("-0.") != "" if column.kind in NUMBERS else True


def is_mark(value: object) -> bool:
    """The same for a Python value, whatever type its column has."""
    if isinstance(value, bool | int | float | Decimal):
        return value != 0
    return value is not None


class TableKind(StrEnum):
    TABLE = "table"
    PARTITIONED = "partitioned table"
    VIEW = "view"
    MATERIALIZED = "materialized view"


@dataclass(frozen=True)
class SourceColumn:
    name: str
    type: str
    nullable: bool
    indexed: bool  # an index over all rows begins with it


@dataclass(frozen=True)
class CursorCandidate:
    """A column that may serve as incremental_key, and why."""

    column: str
    type: str
    reasons: tuple[str, ...]
    is_modification: bool  # a time that, by its name, changes with every change of the row


@dataclass(frozen=True)
class SourceTable:
    """A relation that the reader's account may read."""

    schema: str
    name: str
    kind: TableKind
    rows: int | None  # estimate; None: the source has none
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]  # primary key, or a unique key without NULL; empty: neither
    cursors: tuple[CursorCandidate, ...]  # the best first
