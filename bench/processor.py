"""Processor time of a process: unlike seconds it hardly depends on what else the machine does."""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT, _OWN, _CHILDREN = 1, slice(11, 13), slice(13, 15)  # places after the name, which may contain spaces


def own_seconds(process: int | str = "self") -> float:
    """Of the process with all its threads."""
    return sum(map(int, _fields(process)[_OWN])) / _TICKS


def ended_children_seconds(process: int) -> float:
    """Of its child processes that have ended; for PostgreSQL, of the sessions that are closed."""
    return sum(map(int, _fields(process)[_CHILDREN])) / _TICKS


def parent_of(process: int) -> int:
    return int(_fields(process)[_PARENT])


def _fields(process: int | str) -> list[str]:
    return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
