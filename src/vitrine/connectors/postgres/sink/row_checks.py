"""Executes the checks of a pipeline on a table of rows, before the rows are visible.

Rows are always `q`, and every operator is one of pg_catalog: none of the target's schemas can replace it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from vitrine.connectors.postgres import PostgresSettings, PostgresSinkOptions, compare_sql
from vitrine.connectors.postgres.sink.session import TargetSession, names
from vitrine.connectors.postgres.sink.target import TargetTable
from vitrine.core import keys, row_checks
from vitrine.core.checks import (
    KEYS_NAMED,
    AcceptedValues,
    BaseCheck,
    CheckResult,
    NotNull,
    Range,
    Results,
    RowCount,
    Sql,
    Unique,
    refuse_failed,
)
from vitrine.core.row_checks import canonical
from vitrine.core.rows import Column, Finding, Key, Kind, bare_type, kind_of
from vitrine.definition.context import SinkJob
from vitrine.definition.model import format_duration
from vitrine.errors import ConfigError
from vitrine.postgres import raw, safe_message
from vitrine.sql.policy import check_sql

_LARGEST = 2**63 - 1
_LARGEST_SETTING = 2**31 - 1


@dataclass(frozen=True)
class Rows:
    """Rows to check: a table or a subquery, the types of its columns, and its key."""

    relation: sql.Composable
    types: Mapping[str, str]
    key: tuple[str, ...]

    @property
    def query(self) -> sql.Composed:
        return sql.SQL("SELECT {} FROM {} AS q").format(names(self.types, "q"), self.relation)


@dataclass(frozen=True)
class Search:
    """How rows that break a check are found: their number, and a query of them."""

    count: sql.Composed
    broken: sql.Composed


def no_rows(types: Mapping[str, str]) -> sql.Composed:
    """A subquery with these columns and without rows."""
    columns = sql.SQL(", ").join(
        sql.SQL("CAST(NULL AS {}) AS {}").format(raw(type_name), sql.Identifier(name))
        for name, type_name in types.items()
    )
    return sql.SQL("(SELECT {} WHERE false)").format(columns)


def restricted(seconds: float, temporary_bytes: int) -> sql.Composed:
    """Settings for the subtransaction of a check; stricter limits of the role take precedence.

    Temporary files are limited if the role may do that. The merge of a batch switches joins off.
    """
    return sql.SQL(
        # guarantee: M5
        "SET LOCAL transaction_read_only = on; SET LOCAL search_path = pg_catalog, pg_temp;"
        " SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on;"
        " SELECT set_config('statement_timeout',"
        " CASE WHEN setting::bigint BETWEEN 1 AND {limit} THEN setting ELSE {limit}::text END, true)"
        " FROM pg_settings WHERE name = 'statement_timeout';"
        " SELECT set_config('temp_file_limit', {files}::text, true) FROM pg_settings WHERE name = 'temp_file_limit'"
        " AND has_parameter_privilege('temp_file_limit', 'SET') AND NOT setting::bigint BETWEEN 0 AND {files}"
    ).format(
        limit=sql.Literal(max(1, min(round(seconds * 1000), _LARGEST_SETTING))),
        files=sql.Literal(min(temporary_bytes // 1024, _LARGEST_SETTING)),
    )


# -- rows that break a check ------------------------------------------------------------------------------------------


def breaking(check: BaseCheck, rows: Rows) -> sql.Composed:
    """Whether row q breaks a check of single rows."""
    match check:
        case NotNull():
            return sql.SQL("num_nulls({}) > 0").format(names(check.columns, "q"))
        case AcceptedValues():
            return _is_another(check, rows.types[check.column])
        case Range():
            return _is_outside(check, rows.types[check.column])
        case _:
            raise ValueError(f"{check.kind} is no check of single rows")


def _is_another(check: AcceptedValues, type_name: str) -> sql.Composed:
    texts = [canonical(value, type_name) for value in check.values]
    column, compared = _compared(check.column, type_name, texts)
    values = sql.SQL(", ").join(map(sql.Literal, texts))
    return sql.SQL("{} OPERATOR(pg_catalog.<>) ALL (ARRAY[{}]::{}[])").format(column, values, compared)


def _is_outside(check: Range, type_name: str) -> sql.Composed:
    bounds = [("<", check.min), (">", check.max)]
    texts = {operator: canonical(bound, type_name) for operator, bound in bounds if bound is not None}
    column, compared = _compared(check.column, type_name, list(texts.values()))
    parts = [
        sql.SQL("{} OPERATOR(pg_catalog.{}) {}::{}").format(column, raw(operator), sql.Literal(text), compared)
        for operator, text in texts.items()
    ]
    if kind_of(type_name) in (Kind.FLOAT, Kind.DECIMAL):  # PostgreSQL orders NaN above all other numbers
        parts.append(sql.SQL("{} OPERATOR(pg_catalog.=) 'NaN'::{}").format(column, compared))
    return sql.SQL("({})").format(sql.SQL(" OR ").join(parts))


def _compared(name: str, type_name: str, texts: Sequence[str]) -> tuple[sql.Composable, sql.SQL]:
    """The column, and the type in which it is compared: without a length or scale, which would change the values."""
    column, kind = sql.Identifier("q", name), kind_of(type_name)
    if kind is Kind.INTEGER:
        wide = raw("bigint" if all(abs(int(text)) <= _LARGEST for text in texts) else "numeric")
        return sql.SQL("{}::{}").format(column, wide), wide
    if kind is Kind.TEXT:  # exactly, whatever the collation and the type find equal
        return sql.SQL('{}::text COLLATE "C"').format(column), raw("text")
    return column, raw(bare_type(type_name))


def select(condition: sql.Composed, rows: Rows) -> sql.Composed:
    return sql.SQL("{} WHERE {}").format(rows.query, condition)


def search(broken: sql.Composed) -> Search:
    return Search(sql.SQL("SELECT count(*) AS rows FROM ({}) AS found").format(broken), broken)


def repeated(rows: Rows, columns: Sequence[str]) -> Search:
    """Rows whose values in these columns, none of them NULL, another row has."""
    complete, unique = _complete("q", columns), names(columns, "q")
    counted = sql.SQL(
        "SELECT coalesce(sum(found.rows), 0)::bigint AS rows FROM (SELECT count(*) AS rows FROM {} AS q WHERE {}"
        " GROUP BY {} HAVING count(*) > 1) AS found"
    ).format(rows.relation, complete, unique)
    number = "rows with these values"
    ranked = sql.SQL("SELECT {}, count(*) OVER (PARTITION BY {}) AS {} FROM {} AS q WHERE {}").format(
        names(rows.types, "q"), unique, sql.Identifier(number), rows.relation, complete
    )
    broken = sql.SQL("SELECT {} FROM ({}) AS q WHERE {} > 1").format(
        names(rows.types, "q"), ranked, sql.Identifier("q", number)
    )
    return Search(counted, broken)


def with_twin_in_target(rows: Rows, columns: Sequence[str], target: TargetTable, deleted: Sequence[Key]) -> Search:
    """Rows whose values in these columns a row of another key has in the target, which contains them already.

    Rows of the keys in `deleted` are deleted next, in the same transaction.
    """
    found, facts = target.statements, target.facts
    kept: sql.Composable = sql.SQL("")
    if deleted and facts is not None:
        key = [Column(name, facts.types[name]) for name in target.key]
        kept = sql.SQL(" AND NOT ({})").format(compare_sql.condition("t", key, deleted, facts.equality))
    broken = sql.SQL(
        "SELECT {all} FROM {rows} AS s WHERE {complete} AND EXISTS"
        " (SELECT FROM {target} AS t WHERE {same_values} AND NOT ({same_key}){kept})"
    ).format(
        all=names(rows.types, "s"),
        rows=rows.relation,
        complete=_complete("s", columns),
        target=target.identifier,
        same_values=found.same(columns),
        same_key=found.same(found.key),
        kept=kept,
    )
    return search(broken)


def _complete(table: str, columns: Sequence[str]) -> sql.Composed:
    return sql.SQL("num_nulls({}) = 0").format(names(columns, table))


# -- their number and their keys --------------------------------------------------------------------------------------


def count_all(conditions: Sequence[sql.Composed], rows: Rows) -> sql.Composed:
    """How many rows break each of the conditions, in one pass."""
    counts = sql.SQL(", ").join(
        sql.SQL("count(*) FILTER (WHERE {}) AS {}").format(condition, sql.Identifier(str(at)))
        for at, condition in enumerate(conditions)
    )
    return sql.SQL("SELECT {} FROM {} AS q").format(counts, rows.relation)


def limited(broken: sql.Composed, count: int) -> sql.Composed:
    return sql.SQL("SELECT * FROM ({}) AS found LIMIT {}").format(broken, sql.Literal(count))


def keys_of(broken: sql.Composed, key: Sequence[str], count: int) -> sql.Composed:
    """The first keys, as Vitrine stores them."""
    texts = sql.SQL(", ").join(sql.SQL("concat({})").format(sql.Identifier("found", name)) for name in key)
    return sql.SQL("SELECT json_build_array({})::text AS key FROM ({}) AS found ORDER BY {} LIMIT {}").format(
        texts, broken, names(key, "found"), sql.Literal(count)
    )


Types = Mapping[str, str]
"""Types of columns, by name."""

Answer = TypeVar("Answer")

_UNABLE = (
    *(psycopg.DataError, psycopg.ProgrammingError, psycopg.NotSupportedError),
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.ConfigurationLimitExceeded,  # of temporary files
)
"""Errors that the statement of a check itself causes."""


class RowChecks:
    """The checks of one pipeline.

    Every statement runs in a read-only subtransaction that is rolled back: a check cannot change anything.
    """

    def __init__(
        self, session: TargetSession, target: TargetTable, job: SinkJob[PostgresSinkOptions, PostgresSettings]
    ) -> None:
        self._session = session
        self._target = target
        self._show_keys = job.run.show_keys
        self._limit = job.definition.options.batch_timeout
        self._temporary_bytes = job.settings.temp_file_limit
        self.checks: tuple[BaseCheck, ...] = job.definition.checks

    # -- before any row is moved ----------------------------------------------------------------------------------

    def findings(self, columns: Sequence[Column]) -> Iterator[Finding]:
        """Checks that cannot be carried out on rows of these columns."""
        types = {column.name: self._target.type_of(column) for column in columns}
        if not self.checks or not types:  # transforms return columns that are not known yet
            return
        empty = no_rows(types)
        for check in self.checks:
            reason = row_checks.unfit_reason(check, types, self._target.name)
            if reason is None and not isinstance(check, RowCount):
                reason = self._problem(check, Rows(empty, types, self._target.key))
            if reason is not None:
                yield Finding(row_checks.CHECK_COLUMN, reason, next(iter(check.checked), None), fatal=True)

    def _problem(self, check: BaseCheck, rows: Rows) -> str | None:
        """Why PostgreSQL cannot carry out the check, found out without a row."""
        with self._session.transaction():
            result = self._result(check, lambda: self._count(self._searches(check, rows)), known=None)
        return f"check '{check.label}' {result.found}" if isinstance(result, CheckResult) else None

    # -- rows -----------------------------------------------------------------------------------------------------

    def of_load(self, checks: Sequence[BaseCheck], table: sql.Identifier | None, types: Types, count: int) -> Results:
        """The results for staged rows; `table` is None if nothing was staged. CheckFailed if one of severity fail has
        not passed."""
        if not checks:
            return ()
        if table is None:
            found = {check.label: row_checks.result_of(check, 0) for check in checks}
        else:
            rows = Rows(table, types, self._target.key)
            found = self._results([one for one in checks if not isinstance(one, RowCount)], rows, self._searches)
        compares = any(isinstance(check, RowCount) and check.compares for check in checks)
        before = self._session.count(self._target.identifier) if compares and self._target.exists else None
        found |= {one.label: row_checks.count_result(one, count, before) for one in checks if isinstance(one, RowCount)}
        return refuse_failed(self._target.name, tuple(found[check.label] for check in checks))

    def of_batch(self, table: sql.Identifier, columns: Sequence[Column], deleted: Sequence[Key]) -> Results:
        """The results for rows that the open transaction has merged into the target."""
        checks = [check for check in self.checks if not isinstance(check, RowCount)]
        types = {column.name: self._target.type_of(column) for column in columns}
        rows = Rows(table, types, self._target.key)

        def searches(check: BaseCheck, rows: Rows) -> Search:
            if isinstance(check, Unique):
                return with_twin_in_target(rows, check.columns, self._target, deleted)
            return self._searches(check, rows)

        found = self._results(checks, rows, searches)
        return refuse_failed(self._target.name, tuple(found[check.label] for check in checks))

    def _results(
        self,
        checks: Sequence[BaseCheck],
        rows: Rows,
        searches: Callable[[BaseCheck, Rows], Search],
    ) -> dict[str, CheckResult]:
        row_checks.refuse_unfit(checks, rows.types, self._target.name)
        found: dict[str, CheckResult] = {}
        single = [check for check in checks if not isinstance(check, Unique | Sql)]
        if single:  # all of them in one pass over the rows
            found |= self._in_one_pass(single, rows)
        for check in checks:
            if isinstance(check, Unique | Sql):
                found[check.label] = self._searched(check, searches(check, rows), rows)
        return found

    def _searched(self, check: BaseCheck, search: Search, rows: Rows) -> CheckResult:
        counted = self._result(check, lambda: self._count(search))
        return counted if isinstance(counted, CheckResult) else self._named(check, counted, search.broken, rows)

    def _in_one_pass(self, checks: Sequence[BaseCheck], rows: Rows) -> dict[str, CheckResult]:
        broken = {check.label: breaking(check, rows) for check in checks}
        counted = self._result(checks[0], lambda: self._fetch(count_all(list(broken.values()), rows)))
        if isinstance(counted, CheckResult):  # one statement, so that none of them has an answer
            return {check.label: self._unable(check, counted.found) for check in checks}
        counts = list(counted[0].values())
        return {
            check.label: self._named(check, count, select(broken[check.label], rows), rows)
            for check, count in zip(checks, counts, strict=True)
        }

    def _searches(self, check: BaseCheck, rows: Rows) -> Search:
        """How the rows that break the check are found."""
        match check:
            case Sql():
                text = check_sql(check.query).over(rows.query.as_string(self._session.connection))
                return search(sql.Composed([raw(text)]))
            case Unique():
                return repeated(rows, check.columns)
            case _:
                return search(select(breaking(check, rows), rows))

    # -- statements -----------------------------------------------------------------------------------------------

    def _named(self, check: BaseCheck, count: int, broken: sql.Composed, rows: Rows) -> CheckResult:
        """The result, with some keys if rows break the check and errors may quote keys."""
        # guarantee: M3
        if not count or not self._show_keys:
            return row_checks.result_of(check, count)
        named = self._result(check, lambda: self._keys(broken, rows))
        return row_checks.result_of(check, count, () if isinstance(named, CheckResult) else named)

    def _keys(self, broken: sql.Composed, rows: Rows) -> list[Key]:
        with self._session.connection.cursor() as cursor:
            shape = cursor.execute(limited(broken, 0)).description or ()
        names = [column.name for column in shape]
        if any(names.count(name) != 1 for name in rows.key):
            return []  # a check of type sql need not return the key
        found = self._fetch(keys_of(broken, rows.key, KEYS_NAMED))
        return [keys.from_text(row["key"]) for row in found]

    def _count(self, search: Search) -> int:
        return self._fetch(search.count)[0]["rows"]

    def _fetch(self, statement: sql.Composed) -> list[dict[str, Any]]:
        return self._session.connection.execute(statement).fetchall()

    def _result(self, check: BaseCheck, ask: Callable[[], Answer], known: str | None = "") -> Answer | CheckResult:
        """The answer; a result that has not passed if the check cannot be carried out, or takes too long.

        `known` as in `safe_message`.
        """
        started, limit = time.monotonic(), self._limit.total_seconds()
        try:
            with self._session.connection.transaction(force_rollback=True):
                self._session.connection.execute(restricted(limit, self._temporary_bytes))
                return ask()
        except psycopg.errors.QueryCanceled:
            if time.monotonic() - started < limit:
                raise  # by the run itself, or by a limit of the role
            shown = format_duration(self._limit)
            return self._unable(check, f"takes longer than options.batch_timeout, {shown}; simplify it, or raise that")
        except _UNABLE as exc:
            return self._unable(check, f"cannot be carried out: {safe_message(exc, known)}; correct it")
        except ConfigError as exc:
            return self._unable(check, f"cannot be carried out: {exc}")

    def _unable(self, check: BaseCheck, found: str) -> CheckResult:
        return CheckResult(check.label, check.kind, check.severity, passed=False, found=found)
