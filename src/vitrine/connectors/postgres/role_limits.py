"""Limits that an administrator set for the account of a session: Vitrine may be stricter, never looser."""

import re
from collections.abc import Iterable, Mapping
from typing import LiteralString, NamedTuple

from psycopg import sql
from psycopg.rows import DictRow

QUESTION: LiteralString = """
    ; SELECT session_user::text AS role, current_setting('statement_timeout') AS statement_timeout,
             current_setting('lock_timeout') AS lock_timeout,
             current_setting('idle_in_transaction_session_timeout') AS idle_in_transaction_session_timeout,
             current_setting('transaction_timeout', true) AS transaction_timeout,
             current_setting('temp_file_limit') AS temp_file_limit,
             has_parameter_privilege('temp_file_limit', 'SET') AS may_limit_files,
             (SELECT string_agg(setconfig::text, ' ') FROM pg_db_role_setting WHERE setrole = session_user::regrole)
                 AS chosen,
             current_setting('TimeZone') AS "TimeZone", current_setting('DateStyle') AS "DateStyle",
             current_setting('IntervalStyle') AS "IntervalStyle"
"""
"""Asked with the first message of a connection, because a question of its own would cost a round trip."""

TIMES = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")

_MILLISECONDS = {"": 1, "us": 0.001, "ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_KILOBYTES = {"": 1, "B": 1 / 1024, "kB": 1, "MB": 1024, "GB": 1024**2, "TB": 1024**3}


class RoleLimits(NamedTuple):
    """What applies to the account unless a transaction sets something else."""

    role: str
    shown: Mapping[str, str]  # the values as the server shows them, by the name of the setting
    milliseconds: Mapping[str, int]  # 0: no limit
    temp_file_limit: int  # in kB; -1: no limit
    may_limit_files: bool  # whether the account may set temp_file_limit
    chosen: str  # settings of the role by ALTER ROLE

    @classmethod
    def of(cls, row: DictRow) -> "RoleLimits":
        shown = {name: row[name] or "0" for name in (*TIMES, "temp_file_limit")}
        return cls(
            row["role"],
            shown,
            {name: int(_number(shown[name], _MILLISECONDS)) for name in TIMES},
            int(_number(shown["temp_file_limit"], _KILOBYTES)),
            row["may_limit_files"],
            (row["chosen"] or "").lower(),
        )

    def stricter(self, name: str, milliseconds: int) -> int:
        """The stricter of ours and the role's; 0 is no limit."""
        own = self.milliseconds[name]
        return min(own or milliseconds, milliseconds or own)

    def is_stricter(self, name: str, milliseconds: int) -> bool:
        """Whether the role's own limit is the one that applies."""
        return 0 < self.stricter(name, milliseconds) == self.milliseconds[name]

    def file_limit(self, kilobytes: int) -> int | None:
        """temp_file_limit to set; None: the account may not set it, or has a stricter one."""
        return kilobytes if self.may_limit_files and not 0 <= self.temp_file_limit <= kilobytes else None

    def chose(self, name: str) -> bool:
        return f"{name}=" in self.chosen

    def kept(self, times: Mapping[str, int], memory: Iterable[LiteralString]) -> sql.Composed:
        """What must follow our own SET LOCAL: the role's limits where they are stricter, and memory that it chose."""
        stricter = [
            sql.SQL("; SET LOCAL {} = {}").format(sql.Identifier(name), sql.Literal(self.milliseconds[name]))
            for name, ours in times.items()
            if self.is_stricter(name, ours)
        ]
        own = [sql.SQL("; SET LOCAL {} TO DEFAULT").format(sql.Identifier(name)) for name in memory if self.chose(name)]
        return sql.SQL("").join([*stricter, *own])


def _number(shown: str, units: Mapping[str, float]) -> float:
    found = re.fullmatch(r"(-?\d+)\s*([A-Za-z]*)", shown)
    return int(found[1]) * units[found[2]] if found else 0
