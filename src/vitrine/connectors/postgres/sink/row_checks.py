"""Carries out the checks of a pipeline on a table of rows, before they are visible."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from vitrine.checks import BaseCheck, RowCount, Sql, Unique
from vitrine.connectors.postgres import PostgresSettings, PostgresSinkOptions
from vitrine.connectors.postgres.sink import check_statements as statements
from vitrine.connectors.postgres.sink.session import TargetSession
from vitrine.connectors.postgres.sink.target import TargetTable
from vitrine.errors import ConfigError
from vitrine.flow import checks as rules
from vitrine.flow import keys as key_texts
from vitrine.flow.check_results import KEYS_NAMED, CheckResult, Results, refuse_failed
from vitrine.flow.jobs import SinkJob
from vitrine.flow.rows import Column, Finding, Key
from vitrine.model import format_duration
from vitrine.policy import check_sql
from vitrine.postgres import raw, safe_message

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
        empty = statements.no_rows(types)
        for check in self.checks:
            reason = rules.unfit_reason(check, types, self._target.name)
            if reason is None and not isinstance(check, RowCount):
                reason = self._problem(check, statements.Rows(empty, types, self._target.key))
            if reason is not None:
                yield Finding(rules.CHECK_COLUMN, reason, next(iter(check.checked), None), fatal=True)

    def _problem(self, check: BaseCheck, rows: statements.Rows) -> str | None:
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
            found = {check.label: rules.result_of(check, 0) for check in checks}
        else:
            rows = statements.Rows(table, types, self._target.key)
            found = self._results([one for one in checks if not isinstance(one, RowCount)], rows, self._searches)
        compares = any(isinstance(check, RowCount) and check.compares for check in checks)
        before = self._session.count(self._target.identifier) if compares and self._target.exists else None
        found |= {one.label: rules.count_result(one, count, before) for one in checks if isinstance(one, RowCount)}
        return refuse_failed(self._target.name, tuple(found[check.label] for check in checks))

    def of_batch(self, table: sql.Identifier, columns: Sequence[Column], deleted: Sequence[Key]) -> Results:
        """The results for rows that the open transaction has merged into the target."""
        checks = [check for check in self.checks if not isinstance(check, RowCount)]
        types = {column.name: self._target.type_of(column) for column in columns}
        rows = statements.Rows(table, types, self._target.key)

        def searches(check: BaseCheck, rows: statements.Rows) -> statements.Search:
            if isinstance(check, Unique):
                return statements.with_twin_in_target(rows, check.columns, self._target, deleted)
            return self._searches(check, rows)

        found = self._results(checks, rows, searches)
        return refuse_failed(self._target.name, tuple(found[check.label] for check in checks))

    def _results(
        self,
        checks: Sequence[BaseCheck],
        rows: statements.Rows,
        searches: Callable[[BaseCheck, statements.Rows], statements.Search],
    ) -> dict[str, CheckResult]:
        rules.refuse_unfit(checks, rows.types, self._target.name)
        found: dict[str, CheckResult] = {}
        single = [check for check in checks if not isinstance(check, Unique | Sql)]
        if single:  # all of them in one pass over the rows
            found |= self._in_one_pass(single, rows)
        for check in checks:
            if isinstance(check, Unique | Sql):
                found[check.label] = self._searched(check, searches(check, rows), rows)
        return found

    def _searched(self, check: BaseCheck, search: statements.Search, rows: statements.Rows) -> CheckResult:
        counted = self._result(check, lambda: self._count(search))
        return counted if isinstance(counted, CheckResult) else self._named(check, counted, search.broken, rows)

    def _in_one_pass(self, checks: Sequence[BaseCheck], rows: statements.Rows) -> dict[str, CheckResult]:
        broken = {check.label: statements.breaking(check, rows) for check in checks}
        counted = self._result(checks[0], lambda: self._fetch(statements.count_all(list(broken.values()), rows)))
        if isinstance(counted, CheckResult):  # one statement, so that none of them has an answer
            return {check.label: self._unable(check, counted.found) for check in checks}
        counts = list(counted[0].values())
        return {
            check.label: self._named(check, count, statements.select(broken[check.label], rows), rows)
            for check, count in zip(checks, counts, strict=True)
        }

    def _searches(self, check: BaseCheck, rows: statements.Rows) -> statements.Search:
        """How the rows that break the check are found."""
        match check:
            case Sql():
                text = check_sql(check.query).over(rows.query.as_string(self._session.connection))
                return statements.search(sql.Composed([raw(text)]))
            case Unique():
                return statements.repeated(rows, check.columns)
            case _:
                return statements.search(statements.select(statements.breaking(check, rows), rows))

    # -- statements -----------------------------------------------------------------------------------------------

    def _named(self, check: BaseCheck, count: int, broken: sql.Composed, rows: statements.Rows) -> CheckResult:
        """The result, with some keys if rows break the check and errors may quote keys."""
        # guarantee: M3
        if not count or not self._show_keys:
            return rules.result_of(check, count)
        named = self._result(check, lambda: self._keys(broken, rows))
        return rules.result_of(check, count, () if isinstance(named, CheckResult) else named)

    def _keys(self, broken: sql.Composed, rows: statements.Rows) -> list[Key]:
        with self._session.connection.cursor() as cursor:
            shape = cursor.execute(statements.limited(broken, 0)).description or ()
        names = [column.name for column in shape]
        if any(names.count(name) != 1 for name in rows.key):
            return []  # a check of type sql need not return the key
        found = self._fetch(statements.keys_of(broken, rows.key, KEYS_NAMED))
        return [key_texts.from_text(row["key"]) for row in found]

    def _count(self, search: statements.Search) -> int:
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
                self._session.connection.execute(statements.restricted(limit, self._temporary_bytes))
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
