"""Strategies for source tables: names, types, keys, cursors, and the settings of the database around them."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.helpers.kinds import BY_NAME, Kind
from tests.property import values
from vitrine.definition.model import COLUMN

ROW_ID = "row_id"
"""A column of every table: it identifies a row for the comparison, and is an ordinary column for the pipeline."""

Lane = Literal["copy", "rows seen", "rows copied", "frames"]
LANES: tuple[Lane, ...] = ("copy", "rows seen", "rows copied", "frames")

# -- names ------------------------------------------------------------------------------------------------------------

ALIASES = (
    *("q", "n", "s", "t", "k", "r", "c", "e", "i", "w", "b", "old", "new", "gone", "taken", "found", "rows"),
    *("key", "part", "place", "image", "control", "batch", "wanted", "example", "incomplete", "lowest", "highest"),
    *("hash", "name", "type", "identity", "columns", "keys", "nulls", "bound", "cursor", "moment", "row", "number"),
)
RESERVED = ("select", "user", "order", "table", "from", "end", "all", "window", "current_user", "default")
AWKWARD = (
    *(
        "Upper",
        "camelCase",
        "_",
        "a$b",
        "x" * 63,
        "a b",
        " ",
        'quo"te',
        "it's",
        "per%cent",
        "%s",
        "%(key)s",
        "{}",
        "{0}",
    ),
    *(
        "имя",
        "😀",
        "é" * 31,
        "a.b",
        "a,b",
        "\\",
        "back\\slash",
        "$1",
        "tab\there",
        "line\nbreak",
        "--",
        "/*",
        ";",
        "1st",
    ),
)
NAMES = (*ALIASES, *RESERVED, *AWKWARD)
KEY_NAMES = tuple(name for name in NAMES if re.fullmatch(COLUMN, name))
TABLES = ("subject", "Subject Table", "select", "q", 'quo"te', "имя", "x" * 63, "per%s")

# -- settings ---------------------------------------------------------------------------------------------------------

SETTINGS: Mapping[str, tuple[str, ...]] = {
    "TimeZone": ("Europe/Moscow", "America/New_York", "Asia/Kathmandu", "Pacific/Apia"),
    "DateStyle": ("German", "SQL, DMY", "Postgres, MDY", "ISO, YMD"),
    "IntervalStyle": ("sql_standard", "postgres_verbose", "iso_8601"),
    "default_transaction_isolation": ("serializable", "repeatable read"),
    "default_transaction_read_only": ("on",),
    "default_transaction_deferrable": ("on",),
    "idle_in_transaction_session_timeout": ("500ms",),
    "idle_session_timeout": ("500ms",),
    "statement_timeout": ("5s",),
    "lock_timeout": ("3s",),
    "standard_conforming_strings": ("off",),
    "extra_float_digits": ("0", "-5"),
    "bytea_output": ("escape",),
    "array_nulls": ("off",),
    "transform_null_equals": ("on",),
    "quote_all_identifiers": ("on",),
    "client_encoding": ("LATIN1", "SQL_ASCII"),
    "search_path": ("content", "ugc, content, public", ""),
    "work_mem": ("64kB",),
    "row_security": ("off",),
    "xmloption": ("document",),
}


def _settings(drawn: Mapping[str, int]) -> dict[str, str]:
    return {name: SETTINGS[name][place % len(SETTINGS[name])] for name, place in drawn.items() if name in SETTINGS}


settings_of_database = st.dictionaries(st.sampled_from(sorted(SETTINGS)), st.integers(0, 3), max_size=4).map(_settings)

# -- values -----------------------------------------------------------------------------------------------------------

# A type that ignores case puts these in another order than text does
_MIXED_CASE = st.sampled_from(("a", "A", "á", "b", "B", "c", "D", "e", "F", "g", "H"))
_STRATEGIES: Mapping[str, values.Texts] = {
    "smallint": values.integers(16),
    "integer": values.integers(32),
    "bigint": values.integers(64),
    "numeric": values.numerics,
    "numeric(12,4)": values.scaled.filter(lambda text: abs(float(text)) < 1e7),
    "real": values.floats(32),
    "double precision": values.floats(64),
    "boolean": values.booleans,
    "oid": st.integers(0, 2**32 - 1).map(str),
    "text": values.texts,
    "character varying": values.texts,
    "character varying(60)": values.short_texts(60),
    "character(12)": values.short_texts(12),
    "name": values.short_texts(12),
    "bytea": values.octets,
    "uuid": values.uuids,
    "bit(5)": st.text("01", min_size=5, max_size=5),
    "bit varying": st.text("01", max_size=9),
    "date": values.dates,
    "time without time zone": values.times,
    "time with time zone": values.zoned_times,
    "timestamp without time zone": values.moments,
    "timestamp with time zone": values.moments,
    "timestamp(3) without time zone": values.usual_moments,
    "timestamp(0) with time zone": values.usual_moments,
    "interval": values.intervals,
    "json": values.jsons,
    "jsonb": values.jsons,
    "inet": st.ip_addresses().map(str),
    "point": values.phrase("({},{})", values.floats(64), values.floats(64)),
    "integer[]": st.one_of(values.bounded, values.arrays(values.integers(32))),
    "text[]": values.arrays(values.texts),
    "numeric[]": values.arrays(values.numerics),
    "bytea[]": values.arrays(values.octets),
    "boolean[]": values.arrays(values.booleans),
    "uuid[]": values.arrays(values.uuids),
    "double precision[]": values.arrays(values.floats(64)),
    "timestamp with time zone[]": values.arrays(values.moments),
    "interval[]": values.arrays(values.intervals),
    "jsonb[]": values.arrays(values.jsons),
    "array of a domain": values.arrays(values.short_texts(20)),
    "domain over text": values.short_texts(20),
    "domain over numeric(14,4)": values.scaled,
    "composite": values.pairs(values.numerics, values.texts),
    "array of a composite": values.arrays(values.pairs(values.numerics, values.texts)),
    "text, collation C": values.texts,
    "text, ICU collation": st.one_of(values.texts, st.sampled_from(("a", "A", "á", "b", "B"))),
    "text, nondeterministic ICU collation": st.one_of(values.texts, st.sampled_from(("a", "A", "á", "b", "B"))),
    "text with operators of its own, as citext has them": st.one_of(values.texts, _MIXED_CASE),
    "citext": st.one_of(values.texts, _MIXED_CASE),
    "integer in reverse order": st.one_of(values.integers(32), st.integers(-9, 9).map(str)),
}


POOL = 60 if "VITRINE_TEST_STEPS" in os.environ else 20
"""Values of a type in one test; a short one has no time for more."""


class Pools:
    """Values of each type as text, by number.

    They are drawn before the machine runs: what the machine draws must not depend on the state of the database.
    """

    def __init__(self, kinds: Sequence[Kind], number: int) -> None:
        self._texts = {kind.name: (*kind.samples, *_drawn(kind, number)) for kind in kinds}

    def text(self, kind: Kind, number: int, *, required: bool) -> str | None:
        texts = self._texts[kind.name]
        if not required and number % 5 == 4:
            return None
        return texts[number % len(texts)]


def _drawn(kind: Kind, number: int) -> list[str]:
    found: list[str] = []
    if (strategy := _STRATEGIES.get(kind.name)) is not None:

        @seed(number)
        @settings(
            max_examples=POOL, database=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow]
        )
        @given(text=strategy)
        def collect(text: str) -> None:
            found.append(text)

        collect()
    return found


# -- tables -----------------------------------------------------------------------------------------------------------

# Cursors that are compared with the horizon; the expression is evaluated by a session of the application
CLOCKS: Mapping[str, str] = {
    "timestamp with time zone": "clock_timestamp()",
    "timestamp without time zone": "clock_timestamp()",
    "date": "clock_timestamp()",
}
COUNTERS = ("smallint", "integer", "bigint")
_TOO_FEW = ("bit(5)", "bit varying(9)")  # values for a cursor that grows with every write
# Types and collations whose default order, or equality, is not that of the operators found by name
OWN_ORDER = (
    *("text with operators of its own, as citext has them", "integer in reverse order", "citext", "ltree"),
    "text, nondeterministic ICU collation",
)
REVERSED = Kind(
    *("integer in reverse order", "public.reversed", "public.reversed", ("2147483647", "-1", "0", "1", "7")),
    nth=lambda number: str(-number),
)


@dataclass(frozen=True)
class Shape:
    """A source table and how a pipeline reads it."""

    table: str
    columns: Mapping[str, Kind]  # without row_id
    key: tuple[str, ...]
    cursor: str | None  # None: mode full
    tie: str  # orders rows with the same cursor
    star: bool  # SELECT *, or the columns by name
    monotonic: bool  # the pipeline has the option cursor_is_monotonic
    adds_columns: bool

    @property
    def all_columns(self) -> dict[str, Kind]:
        return {ROW_ID: BY_NAME["bigint"], **self.columns}

    def has_clock(self) -> bool:
        return self.cursor is not None and self.columns[self.cursor].name in CLOCKS


@st.composite
def shapes(draw: st.DrawFn, kinds: Sequence[Kind], ordered: tuple[Kind, ...]) -> Shape:
    """A table with up to six columns besides its key and cursor; a few have a key without order."""
    keys = [*ordered * 4, *(kind for kind in kinds if kind not in ordered)]
    key_kinds = draw(st.lists(st.sampled_from(_with_own_order(keys)), min_size=1, max_size=2))
    cursor_kind = draw(st.one_of(st.none(), st.sampled_from(_cursors(kinds))))
    others = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=6))
    cursor_kinds = [] if cursor_kind is None else [cursor_kind]
    count = len(key_kinds) + len(cursor_kinds)
    named = draw(st.lists(st.sampled_from(KEY_NAMES), min_size=count, max_size=count, unique=True))
    rest = draw(
        st.lists(
            st.sampled_from([name for name in NAMES if name not in named]),
            min_size=len(others),
            max_size=len(others),
            unique=True,
        )
    )
    columns = dict(zip([*named, *rest], [*key_kinds, *cursor_kinds, *others], strict=True))
    order = draw(st.permutations(list(columns)))
    is_native = cursor_kind is None or cursor_kind.name in (*CLOCKS, *COUNTERS)
    is_tie = len(key_kinds) == 1 and draw(st.integers(0, 3)) > 0  # one column of two is not unique
    return Shape(
        table=draw(st.sampled_from(TABLES)),
        columns={name: columns[name] for name in order},
        key=tuple(named[: len(key_kinds)]),
        cursor=named[-1] if cursor_kinds else None,
        tie=named[0] if is_tie else ROW_ID,
        star=draw(st.booleans()),
        monotonic=not is_native and draw(st.integers(0, 9)) > 0,
        adds_columns=draw(st.booleans()),
    )


def _cursors(kinds: Sequence[Kind]) -> list[Kind]:
    """Times and integers more often than others."""
    usual = [kind for kind in kinds if kind.name in (*CLOCKS, *COUNTERS)]
    others = [kind for kind in kinds if kind.nth is not None and kind.name not in _TOO_FEW and kind not in usual]
    return _with_own_order([*usual * 4, *others])


def _with_own_order(kinds: list[Kind]) -> list[Kind]:
    """With a type of OWN_ORDER in about a quarter of the places: a loss needs several rows, read in small batches."""
    own_order = [kind for kind in kinds if kind.name in OWN_ORDER]
    return [*kinds, *own_order * (len(kinds) // 3 // len(own_order))]
