"""Both sides of a comparison, computed at the same time."""

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from vitrine.compare.comparison import ComputedSides
from vitrine.core.rows import ALL_KEYS, Column, CommonForm, Compare, Digest
from vitrine.errors import DataError, TransientError

ID, NOTE = Column("id", "integer"), Column("note", "text")
WANTED = Compare(key=(ID,), columns=(ID, NOTE), forms={"id": CommonForm.SAME, "note": CommonForm.SAME})
WAIT_SECONDS = 20.0

Compute = Callable[[Compare], Sequence[Digest]]


def sides(source: Compute, target: Compute, cancel: Callable[[], None] = lambda: None) -> ComputedSides:
    plan = SimpleNamespace(source=SimpleNamespace(digest=source, cancel=cancel), sink=SimpleNamespace(digest=target))
    built: Any = SimpleNamespace(plan=plan, source=SimpleNamespace(columns=(ID, NOTE)))
    produced: Any = None
    return ComputedSides(built, WANTED, "id", produced, None)


def figures(rows: int) -> list[Digest]:
    return [Digest(ALL_KEYS, rows, 0)]


def test_neither_side_waits_for_the_other() -> None:
    both = threading.Barrier(2)

    def meet(rows: int) -> Compute:
        def compute(_: Compare) -> list[Digest]:
            both.wait(WAIT_SECONDS)
            return figures(rows)

        return compute

    assert sides(meet(1), meet(2)).pair(WANTED) == (figures(1), figures(2))


def test_a_target_that_went_away_is_reported_before_the_source_is_complete() -> None:
    cancelled = threading.Event()

    def slow(_: Compare) -> list[Digest]:
        assert cancelled.wait(WAIT_SECONDS)
        return figures(1)

    def gone(_: Compare) -> list[Digest]:
        raise TransientError("target: the server closed the connection")

    with pytest.raises(TransientError, match="closed the connection"):
        sides(slow, gone, cancelled.set).pair(WANTED)
    assert cancelled.is_set()


@pytest.mark.parametrize("refusing", ["source", "target"])
def test_a_column_that_one_side_cannot_compare_is_left_out_and_named(refusing: str) -> None:
    def refuse(compare: Compare) -> list[Digest]:
        if NOTE in compare.columns:
            raise DataError("no common form")
        return figures(1)

    def accept(_: Compare) -> list[Digest]:
        return figures(1)

    compared = sides(refuse, accept) if refusing == "source" else sides(accept, refuse)
    assert compared.pair(WANTED) == (figures(1), figures(1))
    assert list(compared.unreadable) == ["column 'note' cannot be compared (no common form)"]
