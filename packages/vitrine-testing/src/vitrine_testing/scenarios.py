"""Runs that fail at a point: every point of every kind of run, with a crash, a transient failure and a takeover."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, TypeVar

from vitrine.core.protocols import Outcome
from vitrine.errors import TransientError, VitrineError
from vitrine_testing import data
from vitrine_testing.control import ScriptedControl
from vitrine_testing.lists import ListTable
from vitrine_testing.points import Points
from vitrine_testing.runs import Bench, Tested

Made = TypeVar("Made", bound=Tested)


class Failure(StrEnum):
    """What happens at a point."""

    CRASH = "crash"  # the process ends, another one claims the pipeline
    TRANSIENT = "transient failure"  # the same run makes another attempt
    TAKEOVER = "takeover"  # another runner completes the work, then the first one continues


def changes(bench: Bench[Made]) -> Made:
    """Changes go into a target that exists; the watermark holds the position of the last rows back."""
    table = ListTable(data.COLUMNS, data.rows(1, 2), bound=data.moment(6))
    pipeline = bench.pipeline(table, mode="incremental", incremental_key="modified")
    pipeline.run()
    table.rows += data.rows(3, 7)
    table.put(**data.row(1, "changed", 8))
    return pipeline


def first_load(bench: Bench[Made]) -> Made:
    """An incremental pipeline whose target does not exist yet."""
    table = ListTable(data.COLUMNS, data.rows(1, 6), bound=data.moment(4))
    return bench.pipeline(table, mode="incremental", incremental_key="modified")


def full_load(bench: Bench[Made]) -> Made:
    """A load replaces a target with rows, and catches up with what changed meanwhile."""
    table = ListTable(data.COLUMNS, data.rows(1, 3), bound=data.moment(100))
    pipeline = bench.pipeline(table, incremental_key="modified")
    pipeline.run()
    table.remove("2")
    table.rows += data.rows(4, 7)
    table.put(**data.row(1, "changed", 8))
    return pipeline


def full_run(bench: Bench[Made]) -> Made:
    """An incremental pipeline loads everything again: rows that vanished are removed, and a checkpoint is left."""
    table = ListTable(data.COLUMNS, data.rows(1, 3), bound=data.moment(6))
    pipeline = bench.pipeline(table, mode="incremental", incremental_key="modified")
    pipeline.run()
    table.remove("2")
    table.rows += data.rows(4, 7)
    table.put(**data.row(1, "changed", 8))
    pipeline.asks_full = True
    return pipeline


def restarted_load(bench: Bench[Made]) -> Made:
    """A load that was left unfinished belongs to another query, and is discarded."""
    table = ListTable(data.COLUMNS, data.rows(1, 4), bound=data.moment(100))
    pipeline = bench.pipeline(table, incremental_key="modified")
    pipeline.run(control=ScriptedControl(stop_after=1))
    pipeline.change_query()
    return pipeline


class Prepare(Protocol):
    """Makes a pipeline whose next run is the one under test, in several units."""

    def __call__(self, bench: Bench[Made]) -> Made: ...


LOADS: Mapping[str, Prepare] = MappingProxyType(
    {"first load": first_load, "full load": full_load, "full run": full_run}
)
SCENARIOS: Mapping[str, Prepare] = MappingProxyType({"changes": changes, **LOADS, "restarted load": restarted_load})


def points_of(bench: Bench[Tested], scenario: str) -> list[str]:
    """Every point that an undisturbed run reaches."""
    points = Points()
    SCENARIOS[scenario](bench).run(points)
    return points.reached


def differences(bench: Bench[Tested], scenario: str, failure: Failure, stride: int = 1) -> Iterator[str]:
    """The points after whose failure the target is not equal to the source.

    With a stride, only every n-th point is tested, and another part of them with each scenario and failure.
    """
    first = (list(SCENARIOS).index(scenario) + 4 * list(Failure).index(failure)) % stride
    for point in points_of(bench, scenario)[first::stride]:
        if failure is Failure.TAKEOVER and point.startswith("batch read"):
            continue  # reached in the thread that reads, while the run itself continues
        pipeline = SCENARIOS[scenario](bench)
        _fail_at(pipeline, point, failure)
        if not pipeline.is_equal():
            yield point


def _fail_at(pipeline: Tested, point: str, failure: Failure) -> None:
    """The run under test with a failure at the point; afterwards everything that was started has ended."""
    match failure:
        case Failure.CRASH:
            pipeline.crash(point)
            change(pipeline.table)
            pipeline.finish_elsewhere()
            _read_the_rest(pipeline)
        case Failure.TRANSIENT:
            _fail_once(pipeline, point)
            _read_the_rest(pipeline)
        case Failure.TAKEOVER:
            _take_over_at(pipeline, point)


def _fail_once(pipeline: Tested, point: str) -> None:
    def fail() -> None:
        change(pipeline.table)
        raise TransientError(f"failure at {point}")

    assert pipeline.run(Points(point, fail)) is Outcome.FINISHED


def _take_over_at(pipeline: Tested, point: str) -> None:
    """The first holder continues after everything is done: no later run can repair what it damages."""
    held = pipeline.claim()
    taken_over: list[bool] = []

    def take_over() -> None:
        change(pipeline.table)
        successor = pipeline.take_over()
        taken_over.append(successor is not None)
        if successor is not None:
            successor.leave(successor.complete())
            _read_the_rest(pipeline)

    ended = held.ended(Points(point, take_over))
    held.leave(ended)
    assert isinstance(ended, Outcome) or taken_over == [True], f"{point}: {ended}"
    if taken_over == [False]:  # the store does not allow it at this point
        assert pipeline.run() is Outcome.FINISHED


def _read_the_rest(pipeline: Tested) -> None:
    """What changed after the read is the work of the next run; a load would hide what the one before has lost."""
    if pipeline.incremental:
        pipeline.asks_full = False
        assert pipeline.run() is Outcome.FINISHED


def replace_at(pipeline: Tested, point: str) -> Outcome | VitrineError:
    """At the point, others complete a load of another query; how the first holder ends after that.

    The load of the first holder is still there, because the first of the others crashes before it discards it.
    """

    def complete_other_query() -> None:
        pipeline.table.put(**data.row(2, "of the other query"))
        pipeline.change_query()
        pipeline.crash("before discard 1", pipeline.take_over())
        pipeline.finish_elsewhere()

    held = pipeline.claim()
    ended = held.ended(Points(point, complete_other_query))
    held.leave(ended)
    return ended


def change(table: ListTable) -> None:
    """Rows that the failed unit may have written are changed, and one is new."""
    for number in (1, 3, 6):
        table.put(**data.row(number, "changed again", 200 + number))
    table.put(**data.row(99, second=300))
