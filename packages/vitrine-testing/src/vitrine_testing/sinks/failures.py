"""Failures of the run and of the target: at every point, without a reply, after a takeover, and at the end."""

import threading
import time
from contextlib import ExitStack, suppress

import pytest
from pydantic import SecretStr, ValidationError

from vitrine import input_errors
from vitrine.core.protocols import Outcome
from vitrine.core.rows import Entry, Step
from vitrine.definition import connectors
from vitrine.errors import ConfigError, LeaseLost, TransientError, VitrineError
from vitrine.plan import planner
from vitrine_testing import data, scenarios
from vitrine_testing.cases import Fault, NotSimulated
from vitrine_testing.control import ScriptedControl
from vitrine_testing.lists import ListTable
from vitrine_testing.points import Points
from vitrine_testing.scenarios import LOADS, SCENARIOS, Failure
from vitrine_testing.sinks.actions import (
    HIDDEN_VALUE,
    INCREMENTAL,
    WAIT_SECONDS,
    in_thread,
    open_files,
    opened,
    simulated,
)
from vitrine_testing.workbench import Workbench


class FailureTests:
    """Numbers 6 to 8 and 19 to 23."""

    stride = 1
    """Test every n-th point of a run only, for a system that takes long to create a target."""

    # -- (6) failures at every point ------------------------------------------------------------------------------

    @pytest.mark.parametrize("failure", list(Failure))
    @pytest.mark.parametrize("scenario", SCENARIOS)
    def test_06_after_a_failure_at_any_point_the_target_equals_the_source(
        self, bench: Workbench, scenario: str, failure: Failure
    ) -> None:
        assert list(scenarios.differences(bench, scenario, failure, self.stride)) == []

    @pytest.mark.parametrize("point", ["written 2", "unit acknowledged 2"])
    def test_06_a_row_that_is_deleted_between_a_failed_unit_and_its_repetition_is_not_loaded(
        self, bench: Workbench, point: str
    ) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, data.rows(1, 6)))
        pipeline.crash(point)
        if pipeline.state().generation_rows == 2:  # the second unit is not saved, and will be repeated
            pipeline.table.remove("4")
        pipeline.finish_elsewhere()
        assert pipeline.is_equal()

    # -- (7) requests without a reply -----------------------------------------------------------------------------

    @pytest.mark.parametrize("scenario", ["changes", *LOADS])
    @pytest.mark.parametrize("fault", [Fault.REPLY_LOST, Fault.APPLIED_LATE])
    def test_07_a_write_whose_reply_is_lost_or_that_is_applied_late_does_no_harm(
        self, bench: Workbench, scenario: str, fault: Fault
    ) -> None:
        pipeline = SCENARIOS[scenario](bench)
        held = pipeline.claim()
        with simulated(bench, pipeline, fault):
            with pytest.raises(TransientError):
                held.attempt()
            scenarios.change(pipeline.table)
            held.leave(held.complete())
        # no run follows: it would repair what a late write has damaged
        assert pipeline.is_equal()

    # -- (8) a run that has lost its lease ------------------------------------------------------------------------

    def test_08_a_unit_of_a_lost_lease_changes_nothing(self, bench: Workbench) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, data.rows(1, 4)), **INCREMENTAL)
        pipeline.run()
        with opened(pipeline.claim()) as late:
            old = list(late.batches())
            pipeline.table.rows = [data.row(number, "newer", 100 + number) for number in range(1, 5)]
            pipeline.finish_elsewhere()
            for batch in old:
                with pytest.raises(VitrineError):
                    late.commit(batch)
            with pytest.raises(VitrineError):
                late.delete([("1",)])
        assert pipeline.is_equal()

    def test_08_a_publish_of_a_lost_lease_changes_nothing(self, bench: Workbench) -> None:
        pipeline = scenarios.full_load(bench)
        assert isinstance(scenarios.replace_at(pipeline, "before publish 1"), VitrineError)
        assert pipeline.is_equal()

    def test_08_a_discard_of_a_lost_lease_changes_nothing(self, bench: Workbench) -> None:
        pipeline = scenarios.restarted_load(bench)
        assert isinstance(scenarios.replace_at(pipeline, "before discard 1"), VitrineError)
        assert pipeline.is_equal()

    def test_08_a_save_of_a_lost_lease_is_refused(self, bench: Workbench) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, data.rows(1, 2)))
        with opened(pipeline.claim()) as late:
            pipeline.finish_elsewhere()
            with pytest.raises(LeaseLost):
                late.held.checkpoint.save(Entry(Step.PROGRESS), None)

    # -- (19) the target vanishes ---------------------------------------------------------------------------------

    def test_19_a_target_that_vanishes_in_the_middle_fails_the_run_and_moves_no_checkpoint(
        self, bench: Workbench
    ) -> None:
        pipeline = scenarios.changes(bench)
        with ExitStack() as lasting:

            def remove() -> None:
                lasting.enter_context(simulated(bench, pipeline, Fault.TARGET_GONE))

            with pytest.raises(ConfigError) as refused:
                pipeline.run(Points("unit acknowledged 1", remove))
        assert refused.value.code == "TARGET_SCHEMA"
        assert pipeline.rows() == {}
        # what was acknowledged before may be saved, and nothing after it
        assert pipeline.state().position.cursor == (data.moment(4), "4")
        with pytest.raises(ConfigError):
            pipeline.run()

    # -- (20) interruption ----------------------------------------------------------------------------------------

    def test_20_a_run_is_interrupted_while_the_target_is_down(self, bench: Workbench) -> None:
        pipeline = scenarios.changes(bench)
        held = pipeline.claim()
        before = pipeline.state().position
        control = ScriptedControl()
        with ExitStack() as lasting:

            def take_down() -> None:
                lasting.enter_context(simulated(bench, pipeline, Fault.DOWN))
                control.stopped = Outcome.PAUSED

            with suppress(TransientError):  # a sink may fail at once, or wait and be interrupted
                assert held.attempt(Points("before write 1", take_down), control) is Outcome.PAUSED
        assert pipeline.state().position == before
        held.leave(held.complete())
        pipeline.run()
        assert pipeline.is_equal()

    def test_20_a_call_ends_soon_after_it_is_cancelled(self, bench: Workbench) -> None:
        pipeline = scenarios.changes(bench)
        with opened(pipeline.claim()) as run, simulated(bench, pipeline, Fault.BLOCKED):
            first = next(run.batches())
            ended = in_thread(lambda: run.commit(first))
            assert not ended.wait(0.3), "the write did not wait: the case does not block it"
            started = time.monotonic()
            while not ended.wait(0.05) and time.monotonic() - started < WAIT_SECONDS:
                run.sink.cancel()
            assert ended.is_set(), f"the write did not end within {WAIT_SECONDS:g} s"

    def test_20_a_closed_sink_leaves_nothing_behind(self, bench: Workbench) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, data.rows(1, 5)))
        pipeline.run()
        threads, files = set(threading.enumerate()), open_files()
        pipeline.run()
        with opened(pipeline.claim()) as run:
            run.sink.describe(data.COLUMNS)
            run.sink.close()
            run.sink.close()
        assert set(threading.enumerate()) <= threads
        assert open_files() <= files

    # -- (21) the lease -------------------------------------------------------------------------------------------

    def test_21_no_request_starts_after_the_lease_has_ended_or_outlasts_it(self, bench: Workbench) -> None:
        pipeline = scenarios.changes(bench)
        before = pipeline.rows()
        control = ScriptedControl()
        with opened(pipeline.claim(), control) as run:
            first = next(run.batches())
            with run.sink.unit(run.held.checkpoint.stamp()) as unit:
                if unit.transaction is not None:
                    pytest.skip("the unit has the store's transaction, which the fence ends")
            with simulated(bench, pipeline, Fault.BLOCKED):
                control.deadline = time.monotonic() + 0.5
                ended = in_thread(lambda: run.commit(first))
                assert ended.wait(0.5 + WAIT_SECONDS), "the request outlasts the lease"
            with pytest.raises(LeaseLost):
                run.commit(first)
        assert pipeline.rows() == before

    # -- (22) errors ----------------------------------------------------------------------------------------------

    def test_22_errors_have_a_group_and_show_neither_secrets_nor_values(self, bench: Workbench) -> None:
        errors: list[VitrineError] = []
        for fault in (Fault.DOWN, Fault.REPLY_LOST, Fault.TARGET_GONE):
            pipeline = scenarios.changes(bench)
            pipeline.table.rows.append(data.row(50, HIDDEN_VALUE))
            held = pipeline.claim()
            try:
                with bench.case.fault(pipeline.target, fault):
                    held.attempt()
            except NotSimulated:
                continue
            except VitrineError as exc:
                errors.append(exc)
            finally:
                held.drop()
        assert errors, "no fault was simulated"
        assert [error for error in errors if type(error) is VitrineError] == []
        for hidden in (HIDDEN_VALUE, *_secrets(bench)):
            assert [error for error in errors if hidden in str(error)] == []

    # -- (23) the constructor -------------------------------------------------------------------------------------

    def test_23_the_constructor_opens_nothing(self, bench: Workbench) -> None:
        pipeline = scenarios.changes(bench)
        with simulated(bench, pipeline, Fault.DOWN):
            files, threads = open_files(), set(threading.enumerate())
            checked = planner.check(pipeline.definition, bench.settings)
            assert open_files() <= files
            assert set(threading.enumerate()) <= threads
            checked.sink.close()

    def test_23_an_unknown_option_is_named(self, bench: Workbench) -> None:
        with pytest.raises(ValidationError) as refused:
            bench.define(ListTable(data.COLUMNS), options={"no_such_option": 1})
        (error,) = input_errors.explain(refused.value.errors())
        assert "options.no_such_option" in error.sentence


def _secrets(bench: Workbench) -> list[str]:
    connector = connectors.installed()[bench.case.connector]
    section = bench.settings.section(connector.name, connector.settings)
    found = [getattr(section, name) for name in type(section).model_fields]
    return [one.get_secret_value() for one in found if isinstance(one, SecretStr)]
