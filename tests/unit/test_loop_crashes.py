"""The loop and the checkpoint with three kinds of target: after a failure at any point nothing is lost or damaged."""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.loop_bench import (
    DocumentTarget,
    FencedStore,
    JoinedTarget,
    LedgerTarget,
    MemoryBench,
    Target,
    answer_in_memory,
)
from vitrine.core import loop
from vitrine.core.protocols import Checkpoint
from vitrine.core.rows import Entry, Saved, Stamp, Written
from vitrine.errors import TransientError, VitrineError
from vitrine.store.checkpoint import StoreCheckpoint
from vitrine_testing import data
from vitrine_testing.lists import ListTable
from vitrine_testing.scenarios import LOADS, SCENARIOS, Failure, change, differences, full_load, replace_at

KINDS: dict[str, Callable[[FencedStore], Target]] = {
    "the store's transaction": JoinedTarget,
    "a transaction of its own": LedgerTarget,
    "documents with versions": DocumentTarget,
}


@pytest.fixture(autouse=True)
def _store_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    answer_in_memory(monkeypatch)


@pytest.mark.parametrize("failure", list(Failure))
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("kind", KINDS)
def test_after_a_failure_at_any_point_the_target_equals_the_source(kind: str, scenario: str, failure: Failure) -> None:
    assert list(differences(MemoryBench(KINDS[kind]), scenario, failure)) == []


def late_request_is_harmless(scenario: str) -> bool:
    """A request without an answer is repeated, and applied only after the repetition."""
    pipeline = SCENARIOS[scenario](MemoryBench(DocumentTarget))
    assert isinstance(pipeline.target, DocumentTarget)
    postponed: list[Callable[[], None]] = []
    pipeline.target.postponed = postponed
    held = pipeline.claim()
    with pytest.raises(TransientError):
        held.attempt()
    change(pipeline.table)
    held.leave(held.complete())
    (request,) = postponed
    with suppress(VitrineError):  # no client is there to receive the answer
        request()
    return pipeline.is_equal()


@pytest.mark.parametrize("scenario", ["changes", *LOADS])
def test_a_request_that_is_applied_late_does_no_harm(scenario: str) -> None:
    assert late_request_is_harmless(scenario)


def deleted_row_is_not_loaded(kind: Callable[[FencedStore], Target]) -> bool:
    """A row is deleted at the source between a unit that failed and its repetition."""
    pipeline = MemoryBench(kind).pipeline(ListTable(data.COLUMNS, data.rows(1, 6)))
    pipeline.crash("written 2")
    pipeline.table.remove("4")
    pipeline.finish_elsewhere()
    return pipeline.is_equal()


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_is_deleted_before_its_unit_is_repeated_is_not_loaded(kind: str) -> None:
    assert deleted_row_is_not_loaded(KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_a_publish_of_a_lost_lease_changes_nothing(kind: str) -> None:
    pipeline = full_load(MemoryBench(KINDS[kind]))
    assert isinstance(replace_at(pipeline, "before publish 1"), VitrineError)
    assert pipeline.is_equal()


# -- the same without a protection: what these tests would see --------------------------------------------------------


def without(protection: str, kind: Callable[[FencedStore], Target]) -> Callable[[FencedStore], Target]:
    """Targets that lack one protection."""

    def create(store: FencedStore) -> Target:
        target = kind(store)
        assert getattr(target, protection) is True
        setattr(target, protection, False)
        return target

    return create


@pytest.mark.parametrize(
    ("kind", "scenario"), [(LedgerTarget, "changes"), (DocumentTarget, "changes"), (DocumentTarget, "full load")]
)
def test_without_versions_a_run_that_lost_its_lease_damages_rows(
    kind: Callable[[FencedStore], Target], scenario: str
) -> None:
    bench = MemoryBench(without("checks_versions", kind))
    assert "before write 1" in list(differences(bench, scenario, Failure.TAKEOVER))


def test_without_a_comparison_a_run_that_lost_its_lease_publishes_its_old_load() -> None:
    pipeline = full_load(MemoryBench(without("compares_shown", DocumentTarget)))
    replace_at(pipeline, "before publish 1")
    assert not pipeline.is_equal()


def test_without_the_sequence_a_deleted_row_is_loaded() -> None:
    assert not deleted_row_is_not_loaded(without("removes_leftovers", DocumentTarget))


def test_with_one_version_for_a_unit_and_its_repetition_a_late_request_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    def stamp(checkpoint: StoreCheckpoint, stamp: Callable[[StoreCheckpoint], Stamp] = StoreCheckpoint.stamp) -> Stamp:
        return replace(stamp(checkpoint), version=1)

    monkeypatch.setattr(StoreCheckpoint, "stamp", stamp)
    assert not late_request_is_harmless("changes")


@pytest.mark.parametrize("kind", [LedgerTarget, DocumentTarget])
def test_a_save_before_the_acknowledgement_loses_rows(
    kind: Callable[[FencedStore], Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_first(
        opened: AbstractContextManager[Any], do: Callable[[Any], object], checkpoint: Checkpoint, entry: Entry
    ) -> tuple[Written, Saved]:
        saved = checkpoint.save(entry, None)
        with opened as unit:
            do(unit)
        return unit.result, saved

    monkeypatch.setattr(loop, "commit_unit", save_first)
    assert "before write 1" in list(differences(MemoryBench(kind), "changes", Failure.CRASH))
