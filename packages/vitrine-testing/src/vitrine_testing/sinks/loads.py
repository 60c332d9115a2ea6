"""Loads: complete for readers, resumed, published twice, guarded, discarded, swept and restored."""

import threading

import pytest
from pydantic import BaseModel

from vitrine.core.protocols import LoadState, Outcome
from vitrine.core.rows import Key
from vitrine.core.status import PipelineId
from vitrine.definition import connectors
from vitrine.definition.context import SweepJob
from vitrine.errors import DataError, RequestRefused, TransientError, VitrineError
from vitrine.store import history
from vitrine_testing import data, scenarios
from vitrine_testing.cases import Texts
from vitrine_testing.control import ScriptedControl
from vitrine_testing.lists import ListTable
from vitrine_testing.points import Points
from vitrine_testing.scenarios import LOADS, Failure
from vitrine_testing.sinks.actions import opened
from vitrine_testing.workbench import StoredPipeline, Workbench

SMALL = 20
"""Rows of a generation where many are loaded: a sink may send each of them by itself."""


class LoadTests:
    """Numbers 9 to 14."""

    shares_target = True
    """Whether several installations can stage loads in one target system; not where that is the store itself."""

    # -- (9) readers ----------------------------------------------------------------------------------------------

    def test_09_a_reader_sees_complete_sets_only(self, bench: Workbench) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, _generation(0)))
        pipeline.run()
        complete = [pipeline.table.by_key()]
        seen: list[dict[Key, Texts]] = []
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                seen.append(pipeline.rows())

        reader = threading.Thread(target=read, name="reader")
        reader.start()
        try:
            for number in (1, 2, 3):
                pipeline.table.rows = _generation(number)
                complete.append(pipeline.table.by_key())
                pipeline.run(control=ScriptedControl(25))
        finally:
            done.set()
            reader.join()
        assert [one for one in seen if one not in complete] == []
        assert len(seen) > len(complete)

    # -- (10) resume ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("scenario", LOADS)
    def test_10_a_load_that_is_interrupted_continues_where_it_stopped(self, bench: Workbench, scenario: str) -> None:
        pipeline = LOADS[scenario](bench)
        before = pipeline.rows()
        assert pipeline.run(control=ScriptedControl(stop_after=2)) is Outcome.RELEASED
        assert pipeline.rows() == before
        pipeline.table.reads.clear()
        assert pipeline.run() is Outcome.FINISHED
        assert pipeline.table.reads[0].after.cursor is not None
        assert pipeline.is_equal()

    @pytest.mark.parametrize("scenario", LOADS)
    def test_10_a_load_whose_staging_vanished_starts_again(self, bench: Workbench, scenario: str) -> None:
        pipeline = LOADS[scenario](bench)
        pipeline.run(control=ScriptedControl(stop_after=2))
        held = pipeline.claim()
        with opened(held, leave=False) as run:
            assert run.load().state is LoadState.STAGED
            run.load().discard()
            assert run.load().state is LoadState.ABSENT
        held.leave(Outcome.RELEASED)
        pipeline.run()
        assert pipeline.is_equal()

    @pytest.mark.parametrize("scenario", LOADS)
    def test_10_a_load_that_was_published_and_not_saved_is_replaced_by_one_of_another_query(
        self, bench: Workbench, scenario: str
    ) -> None:
        pipeline = LOADS[scenario](bench)
        pipeline.crash("published 1")
        pipeline.change_query()
        pipeline.table.put(**data.row(3, "of the other query", 50))
        pipeline.finish_elsewhere()
        pipeline.run()
        assert pipeline.is_equal()

    # -- (11) publish twice ---------------------------------------------------------------------------------------

    @pytest.mark.parametrize("scenario", LOADS)
    @pytest.mark.parametrize("point", ["in publish 1", "published 1"])
    def test_11_a_load_is_published_twice(self, bench: Workbench, scenario: str, point: str) -> None:
        pipeline = LOADS[scenario](bench)
        pipeline.crash(point)
        pipeline.finish_elsewhere()
        assert pipeline.is_equal()

    # -- (12) the shrink guard ------------------------------------------------------------------------------------

    def test_12_a_load_that_deletes_too_much_is_refused_before_anything_is_visible(self, bench: Workbench) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, data.rows(1, 10)))
        pipeline.run()
        before = pipeline.rows()
        pipeline.table.rows = [*data.rows(1, 2), *data.rows(11, 20)]
        with pytest.raises(DataError) as refused:
            pipeline.run()
        assert refused.value.code == "SHRINK_GUARD"
        assert pipeline.rows() == before
        assert not pipeline.state().generation_open
        pipeline.run(allow_shrink=True)
        assert pipeline.is_equal()

    # -- (13) discard and sweep -----------------------------------------------------------------------------------

    def test_13_discard_removes_what_was_staged_and_never_what_readers_see(self, bench: Workbench) -> None:
        pipeline = scenarios.full_load(bench)
        before = pipeline.rows()
        with opened(pipeline.claim()) as run:
            generation = run.stage()
            for _ in range(2):
                run.sink.load(generation).discard()
            assert run.sink.load(generation).state is LoadState.ABSENT
            assert pipeline.rows() == before
            published = run.stage()
            run.publish(published)
            run.sink.load(published).discard()
        assert pipeline.is_equal()

    def test_13_sweep_removes_leftovers_of_this_installation_only(self, bench: Workbench) -> None:
        pipeline = scenarios.full_load(bench)
        before = pipeline.rows()
        own = history.installation_id(bench.connection)
        with opened(pipeline.claim()) as run:
            generation = run.stage()
            _sweep(bench, own, {(pipeline.id, generation.number)})
            assert run.sink.load(generation).state is LoadState.STAGED
            if self.shares_target:
                _sweep(bench, "another installation", set())
                assert run.sink.load(generation).state is LoadState.STAGED
            assert _sweep(bench, own, {(pipeline.id, generation.number + 1)})
            assert run.sink.load(generation).state is LoadState.ABSENT
        assert pipeline.rows() == before

    # -- (14) an earlier generation -------------------------------------------------------------------------------

    def test_14_an_earlier_generation_is_restored_or_refused(self, bench: Workbench) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, _generation(0)))
        pipeline.run()
        earlier = pipeline.rows()
        pipeline.table.rows = _generation(1)
        pipeline.run()
        latest = pipeline.rows()
        held = pipeline.claim_rollback()
        ended = held.ended()
        held.leave(ended)
        if isinstance(ended, RequestRefused):
            assert ended.code == "NOTHING_TO_ROLL_BACK"
            assert pipeline.rows() == latest
        else:
            assert ended is Outcome.FINISHED
            assert pipeline.rows() == earlier
        pipeline.run()
        assert pipeline.is_equal()

    @pytest.mark.parametrize("failure", list(Failure))
    def test_14_after_a_failure_at_any_point_one_generation_is_restored_and_no_further_one(
        self, bench: Workbench, failure: Failure
    ) -> None:
        points, undisturbed = Points(), _three_generations(bench)
        try:
            undisturbed.run(points, held=undisturbed.claim_rollback())
        except RequestRefused:
            pytest.skip("the target keeps no earlier generation")
        assert undisturbed.rows() == _by_key(_generation(1, SMALL))
        for point in points.reached:
            pipeline = _three_generations(bench)
            _roll_back_with(pipeline, point, failure)
            assert pipeline.rows() == _by_key(_generation(1, SMALL)), point
            pipeline.run()
            assert pipeline.is_equal(), point

    def test_14_a_rollback_of_a_lost_lease_changes_nothing(self, bench: Workbench) -> None:
        pipeline = _three_generations(bench)
        held = pipeline.claim_rollback()

        def replace_everything() -> None:
            successor = pipeline.take_over()
            assert successor is not None
            successor.leave(successor.complete())
            pipeline.table.rows = _generation(3, SMALL)
            pipeline.run()

        ended = held.ended(Points("before publish 1", replace_everything))
        held.leave(ended)
        if isinstance(ended, RequestRefused):
            pytest.skip("the target keeps no earlier generation")
        assert isinstance(ended, VitrineError)
        assert pipeline.is_equal()


def _three_generations(bench: Workbench) -> StoredPipeline:
    pipeline = bench.pipeline(ListTable(data.COLUMNS, _generation(0, SMALL)))
    pipeline.run()
    for number in (1, 2):
        pipeline.table.rows = _generation(number, SMALL)
        pipeline.run()
    return pipeline


def _roll_back_with(pipeline: StoredPipeline, point: str, failure: Failure) -> None:
    """A rollback with a failure at the point; afterwards it has been carried out."""
    held = pipeline.claim_rollback()

    def fail() -> None:
        raise TransientError(f"failure at {point}")

    def take_over() -> None:
        successor = pipeline.take_over()
        if successor is not None:
            successor.leave(successor.complete())

    match failure:
        case Failure.CRASH:
            pipeline.crash(point, held)
            pipeline.finish_elsewhere()
        case Failure.TRANSIENT:
            pipeline.run(Points(point, fail), held=held)
        case Failure.TAKEOVER:
            held.leave(held.ended(Points(point, take_over)))


def _by_key(rows: list[Texts]) -> dict[Key, Texts]:
    return ListTable(data.COLUMNS, rows).by_key()


def _generation(number: int, size: int = 100) -> list[Texts]:
    """A set of rows in which every one differs from the set before, and a tenth of them come and go."""
    first = 1 + number * size // 10
    return [data.row(one, f"generation {number}") for one in range(first, first + size)]


def _sweep(bench: Workbench, installation: str, open_loads: set[tuple[PipelineId, int]]) -> list[str]:
    """Names of what the sink has removed."""
    connector = connectors.installed()[bench.case.connector]
    assert connector.sink is not None
    section = bench.settings.section(connector.name, connector.settings)
    job: SweepJob[BaseModel] = SweepJob(section, installation, bench.settings.store_url, lambda: open_loads)
    return list(connectors.load_class(connector, connector.sink.factory).sweep(job))
