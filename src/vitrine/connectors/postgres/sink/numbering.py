"""Numbers the rows of a batch in a temporary table, with the target's types, and finds the values that do not fit."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import psycopg
from psycopg import sql

from vitrine.connectors.postgres import types
from vitrine.connectors.postgres.sink import catalog
from vitrine.connectors.postgres.sink.copy_in import Casts, Conversion, copy_rows
from vitrine.connectors.postgres.sink.session import TargetSession, names
from vitrine.core.rows import Batch, BinaryRows, bare_type
from vitrine.postgres import raw

SENT = sql.Identifier("pg_temp", "vitrine_sent")
NUMBERED = sql.Identifier("pg_temp", "vitrine_numbered")

CHANGED = "VALUE_CHANGED"
"""Code of a reject whose value a cast would change."""


class Unfit(NamedTuple):
    """A numbered row that does not fit."""

    number: int
    column: str | None  # None: the row as a whole breaks a rule
    code: str
    reason: str


@dataclass(frozen=True)
class Numbered:
    """The rows of a batch, or of a staging table, in a temporary table.

    A row whose values do not fit has a verdict, and its key unless that does not fit; other values may be missing.
    """

    columns: tuple[str, ...]
    key: tuple[str, ...]
    count: int
    sent: sql.Identifier  # the same rows as they were sent
    number_name: str
    verdict_name: str
    conversions: tuple[Conversion, ...] = ()

    @property
    def number(self) -> sql.Identifier:
        return sql.Identifier(self.number_name)

    @property
    def verdict(self) -> sql.Identifier:
        return sql.Identifier(self.verdict_name)

    def rows(self, low: int, high: int) -> sql.Composed:
        """The rows of a range, with the columns of the target only."""
        return sql.SQL("(SELECT {} FROM {} WHERE {} BETWEEN {} AND {})").format(
            names(self.columns), NUMBERED, self.number, sql.Literal(low), sql.Literal(high)
        )

    @property
    def keyed_rows(self) -> sql.Composed:
        """Keys of all rows, without those that do not fit themselves."""
        complete = sql.SQL(" AND ").join(sql.SQL("{} IS NOT NULL").format(sql.Identifier(name)) for name in self.key)
        return sql.SQL("(SELECT {} FROM {} WHERE {} IS NULL OR ({}))").format(
            names(self.key), NUMBERED, self.verdict, complete
        )


def number_batch(session: TargetSession, casts: Casts, batch: Batch, key: Sequence[str], limit: int) -> Numbered:
    """Copy the batch, as text or in its own types, and convert it row by row; stops after `limit` rows do not fit."""
    is_text = not isinstance(batch.payload, BinaryRows)
    conversions = casts.of(session.connection, batch.columns)
    columns = [one.name for one in conversions]
    number, verdict = _free_names(columns)
    _create(session, SENT, [(one.name, "text" if is_text else one.source) for one in conversions], number)
    copy_rows(session, casts, SENT, batch, as_text=is_text)
    stored = [(one.name, one.facts.declared) for one in conversions]
    session.create_temporary(NUMBERED, [(number, "integer"), (verdict, "text"), *stored])
    numbered = Numbered(
        tuple(columns),
        tuple(key),
        batch.count,
        SENT,
        number,
        verdict,
        tuple(conversions),
    )
    session.connection.execute("SET LOCAL enable_hashjoin = on")
    converted = 0
    if session.connection.info.server_version >= _HAS_INPUT_IS_VALID:
        converted = _convert_together(session, numbered, is_text=is_text)
    if converted < numbered.count:
        session.connection.execute(_conversion(numbered, is_text=is_text, limit=limit))
    return numbered


def number_rows_of(session: TargetSession, table: sql.Identifier, key: Sequence[str]) -> Numbered:
    """Copy the rows of a table that has the types of the target."""
    columns = list(catalog.column_types(session.connection, table))
    number, verdict = _free_names(columns)
    numbering = sql.SQL(
        "CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT row_number() OVER ()::integer AS {}, NULL::text AS {}, {}"
        " FROM {} AS s"
    ).format(NUMBERED, sql.Identifier(number), sql.Identifier(verdict), names(columns, "s"), table)
    count = session.connection.execute(numbering).rowcount
    return Numbered(tuple(columns), tuple(key), count, NUMBERED, number, verdict)


def with_verdicts(session: TargetSession, numbered: Numbered) -> list[Unfit]:
    """The rows whose values do not fit, in order."""
    statement = sql.SQL("SELECT {0} AS number, {1} AS verdict FROM {2} WHERE {1} IS NOT NULL ORDER BY {0}")
    found = session.connection.execute(statement.format(numbered.number, numbered.verdict, NUMBERED)).fetchall()
    described = {verdict: _described(verdict, numbered.conversions) for verdict in {row["verdict"] for row in found}}
    return [Unfit(row["number"], *described[row["verdict"]]) for row in found]


def _described(verdict: str, conversions: Sequence[Conversion]) -> tuple[str, str, str]:
    """Column, code and reason."""
    place, _, code = verdict.partition(" ")
    conversion = conversions[int(place)]
    if code == CHANGED:
        return conversion.name, code, conversion.change()
    return conversion.name, code, does_not_fit(conversion.name, f"{code} {_error_name(code)}")


def does_not_fit(column: str | None, reason: str) -> str:
    where = f"column '{column}'" if column else "the row"
    return f"{where} does not fit: {reason}"


def _error_name(sqlstate: str) -> str:
    try:
        return psycopg.errors.lookup(sqlstate).__name__
    except KeyError:
        return "DataError"


def _free_names(columns: Sequence[str]) -> tuple[str, str]:
    """Names for the number and the verdict that no column of the query has."""
    number, verdict = "number", "verdict"
    while number in columns or verdict in columns:
        number, verdict = f"{number} ", f"{verdict} "
    return number, verdict


def _create(session: TargetSession, table: sql.Identifier, columns: list[tuple[str, str]], number: str) -> None:
    session.create_temporary(table, columns)
    identity = sql.SQL("ALTER TABLE {} ADD COLUMN {} integer GENERATED ALWAYS AS IDENTITY")
    session.connection.execute(identity.format(table, sql.Identifier(number)))


# -- conversion -------------------------------------------------------------------------------------------------------

_HAS_INPUT_IS_VALID = 160000


def _convert_together(session: TargetSession, numbered: Numbered, *, is_text: bool) -> int:
    """Convert with one statement the rows that certainly fit, and those of which one value certainly does not.

    Returns how many; the block below judges the others.
    """
    ways = [_way(one, is_text=is_text) for one in numbered.conversions]
    verdict, is_key = numbered.verdict, {name: name in numbered.key for name in numbered.columns}
    objections = [
        _objection(place, way, known=way.code is not None and not is_key[name])
        for place, (name, way) in enumerate(zip(numbered.columns, ways, strict=True))
        if way.condition is not None
    ]
    judged = sql.SQL("nullif(concat_ws(',', {}), '')").format(sql.SQL(", ").join([sql.SQL("NULL"), *objections]))
    values = [
        way.value if is_key[name] else sql.SQL("CASE WHEN {} IS NULL THEN {} END").format(verdict, way.value)
        for name, way in zip(numbered.columns, ways, strict=True)
    ]
    # OFFSET 0: the verdict is computed once
    statement = sql.SQL(
        "INSERT INTO {numbered} SELECT {number}, {verdict}, {values}"
        " FROM (SELECT n.*, {judged} AS {verdict} FROM {sent} AS n OFFSET 0) AS n"
        " WHERE {verdict} IS NULL OR {verdict} !~ {unknown}"
    ).format(
        numbered=NUMBERED,
        number=numbered.number,
        verdict=verdict,
        values=sql.SQL(", ").join(values),
        judged=judged,
        sent=numbered.sent,
        unknown=sql.Literal("[?,]"),
    )
    with suppress(psycopg.DataError, psycopg.IntegrityError), session.connection.transaction():
        return session.connection.execute(statement).rowcount
    return 0


def _objection(place: int, way: "_Way", *, known: bool) -> sql.Composed:
    """NULL if a value fits; its verdict, or a question mark if only the block knows that."""
    code = sql.SQL("coalesce({} || {}, '?')").format(sql.Literal(f"{place} "), way.code) if known else sql.SQL("'?'")
    return sql.SQL("CASE WHEN {} THEN NULL ELSE {} END").format(way.condition, code)


class _Way(NamedTuple):
    """How a value that certainly fits is converted."""

    value: sql.Composable
    condition: sql.Composable | None = None  # None: every value fits
    code: sql.Composable | None = None  # SQLSTATE of a value that does not fit; None, or NULL: it may be another one


# Assignments between these types fail with the error of the input function
_WHOLE = frozenset({"smallint", "integer", "bigint"})
_TEXTS = frozenset({"text", "character varying", "bpchar"})


def _fails_as_input(conversion: Conversion) -> bool:
    if conversion.is_domain:
        return False
    source, target = bare_type(conversion.source), conversion.facts.bare
    if source in _WHOLE:
        return target in _WHOLE or target == "numeric"
    return source in _TEXTS and target in _TEXTS


def _way(conversion: Conversion, *, is_text: bool) -> _Way:
    sent, facts = sql.Identifier("n", conversion.name), conversion.facts
    if not is_text and not conversion.is_needed:
        return _Way(sent)
    if is_text and not conversion.is_needed and facts.bare == "text" and not conversion.is_domain:
        return _Way(sent)
    if is_text and not conversion.is_needed:
        # guarantee: J9
        return _Way(_cast(sent, facts.bare), _either(sent, _is_valid(sent, conversion.target)))
    own = _cast(sent, conversion.source) if is_text else sent
    text = types.output_text(own)
    condition = _is_valid(text, conversion.target)
    if conversion.is_checked:
        keeps = conversion.keeps(own, _cast(own, facts.declared))
        condition = sql.SQL("CASE WHEN {} THEN {} ELSE false END").format(condition, keeps)
    if is_text:
        is_own = _is_valid(sent, conversion.source)
        condition = sql.SQL("CASE WHEN {} THEN {} ELSE false END").format(is_own, condition)
    code = _error_code(text, conversion.target) if not is_text and _fails_as_input(conversion) else None
    return _Way(_cast(own, facts.bare), _either(sent, condition), code)


def _cast(value: sql.Composable, type_name: str) -> sql.Composed:
    return sql.SQL("CAST({} AS {})").format(value, raw(type_name))


def _is_valid(text: sql.Composable, type_name: str) -> sql.Composed:
    return sql.SQL("pg_input_is_valid({}, {})").format(text, sql.Literal(type_name))


def _error_code(text: sql.Composable, type_name: str) -> sql.Composed:
    """The SQLSTATE of a text that is not valid; NULL if it is."""
    return sql.SQL("(pg_input_error_info({}, {})).sql_error_code").format(text, sql.Literal(type_name))


def _either(value: sql.Composable, condition: sql.Composable) -> sql.Composed:
    return sql.SQL("({} IS NULL OR {})").format(value, condition)


# One block per row: its subtransaction catches the error of a value; a DO statement leaves no function in the catalog
_BLOCK = """
DECLARE
    n record;
    r {numbered}%ROWTYPE;
    place integer;
    unfit integer := 0;
    {variables}
BEGIN
    FOR n IN SELECT * FROM {sent} AS q WHERE NOT EXISTS
            (SELECT FROM {numbered} AS d WHERE d.{number} = q.{number}) ORDER BY q.{number} LOOP
        r := NULL;
        BEGIN
            {conversions}
        EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
            r.{verdict} := concat(place, ' ', SQLSTATE);
        END;
        r.{number} := n.{number};
        INSERT INTO {numbered} VALUES (r.*);
        IF r.{verdict} IS NOT NULL THEN
            unfit := unfit + 1;
            EXIT WHEN unfit > {limit};
        END IF;
    END LOOP;
END
"""


def _conversion(numbered: Numbered, *, is_text: bool, limit: int) -> sql.Composed:
    # the key first, so that a row is known by its key whatever else does not fit
    ordered = sorted(enumerate(numbered.conversions), key=lambda pair: pair[1].name not in numbered.key)
    body = sql.SQL(_BLOCK).format(
        numbered=NUMBERED,
        sent=SENT,
        number=numbered.number,
        verdict=numbered.verdict,
        limit=sql.Literal(limit),
        variables=sql.SQL("\n    ").join(
            sql.SQL("{} {};").format(_variable(place), raw(one.source))
            for place, one in ordered
            if is_text and one.is_needed
        ),
        conversions=sql.SQL("\n            ").join(
            line for place, one in ordered for line in _lines(place, one, numbered.verdict, is_text=is_text)
        ),
    )
    return sql.SQL("DO LANGUAGE plpgsql {}").format(sql.Literal(body.as_string(None)))


def _lines(place: int, conversion: Conversion, verdict: sql.Identifier, *, is_text: bool) -> Iterator[sql.Composable]:
    name = sql.Identifier(conversion.name)
    sent, stored = sql.SQL("n.{}").format(name), sql.SQL("r.{}").format(name)
    yield sql.SQL("place := {};").format(sql.Literal(place))
    if not is_text or not conversion.is_needed:
        yield sql.SQL("{} := {};").format(stored, sent)
        yield from _checks(place, conversion, verdict, sent, stored, is_typed=not is_text)
        return
    # a value that a transform has made of another type is read by the target's
    own = _variable(place)
    yield sql.SQL(
        "BEGIN {own} := {sent}; {stored} := {own};"
        " EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN"
        " {own} := NULL; {stored} := {sent}; END;"
    ).format(own=own, sent=sent, stored=stored)
    yield from _checks(place, conversion, verdict, own, stored, is_typed=True)


def _checks(
    place: int,
    conversion: Conversion,
    verdict: sql.Identifier,
    value: sql.Composable,
    stored: sql.Composable,
    *,
    is_typed: bool,
) -> Iterator[sql.Composed]:
    if conversion.is_domain:
        yield sql.SQL("PERFORM CAST({} AS {});").format(stored, raw(conversion.target))
    if is_typed and conversion.is_checked:
        yield sql.SQL("IF r.{} IS NULL AND NOT {} THEN r.{} := {}; END IF;").format(
            verdict, conversion.keeps(value, stored), verdict, sql.Literal(f"{place} {CHANGED}")
        )


def _variable(place: int) -> sql.SQL:
    return raw(f"own_{place}")
