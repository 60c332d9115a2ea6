"""Units of changes: empty batches, repetition, keys, types, rejects and deletes."""

from typing import Any

import pytest

from vitrine.core.protocols import Outcome
from vitrine.core.rows import Column, Lane
from vitrine.definition import registry
from vitrine.errors import DataError, VitrineError
from vitrine_testing import data
from vitrine_testing.cases import REFUSED, Fault
from vitrine_testing.control import ScriptedControl
from vitrine_testing.data import SAMPLES, sample_rows
from vitrine_testing.lists import ListTable
from vitrine_testing.sinks.actions import HIDDEN_VALUE, INCREMENTAL, MODES, opened, simulated, unstored
from vitrine_testing.workbench import StoredPipeline, Workbench

# alike once they are joined, folded, trimmed or normalized
PAIRS = (
    *(("1", "11"), ("11", "1"), ("a/b", "c"), ("a", "b/c"), ("A", "B"), ("a", "b"), ("", " "), (" ", "")),
    *(("é", "x"), ("e\u0301", "x"), ("🎬", "日本"), ("a|b", "\\"), ("a,b", '"')),
)


class WritingTests:
    """Numbers 1 to 5 and 15."""

    # -- (1) empty batches ----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("bound", [None, data.moment(5)])
    def test_01_an_empty_source_makes_an_empty_target(self, bench: Workbench, mode: str, bound: str | None) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, bound=bound), **MODES[mode])
        assert pipeline.run() is Outcome.FINISHED
        assert pipeline.rows() == {}
        pipeline.table.rows += data.rows(1, 3)
        pipeline.run()
        assert pipeline.is_equal()
        pipeline.table.rows.clear()
        pipeline.run(allow_shrink=True)
        assert len(pipeline.rows()) == (0 if mode == "full" else 3)

    # -- (2) repetition -------------------------------------------------------------------------------------------

    def test_02_the_same_unit_twice_changes_nothing(self, bench: Workbench) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, data.rows(1, 5)), **INCREMENTAL)
        with opened(pipeline.claim()) as run:
            for _ in range(2):
                run.write()
                assert pipeline.is_equal()

    def test_02_rows_that_did_not_change_are_neither_deleted_nor_rejected(self, bench: Workbench) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, data.rows(1, 5)))
        pipeline.run()
        control = ScriptedControl()
        pipeline.run(control=control)
        assert (control.counts.read, control.counts.deleted, control.counts.rejected) == (5, 0, 0)
        assert pipeline.is_equal()

    # -- (3) keys -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("mode", MODES)
    def test_03_keys_of_several_columns_stay_apart(self, bench: Workbench, mode: str) -> None:
        columns = (Column("a", "text"), Column("b", "text"), *data.COLUMNS)
        rows = [{"a": a, "b": b, **data.row(number)} for number, (a, b) in enumerate(PAIRS, 1)]
        pipeline = bench.pipeline(
            ListTable(columns, rows, bound=data.moment(5)), **MODES[mode] | {"key_columns": ["a", "b"]}
        )
        pipeline.run()
        assert pipeline.is_equal()
        for one in pipeline.table.rows:
            one["note"], one["modified"] = f"changed {one['id']}", data.moment(100 + int(one["id"] or 0))
        pipeline.run()
        assert pipeline.is_equal()

    @pytest.mark.parametrize("mode", MODES)
    def test_03_a_key_that_is_null_fails_the_run(self, bench: Workbench, mode: str) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, data.rows(1, 3)), **MODES[mode])
        pipeline.run()
        before = pipeline.rows()
        pipeline.table.rows.append({"id": None, "note": HIDDEN_VALUE, "modified": data.moment(9)})
        with pytest.raises(DataError) as refused:
            pipeline.run()
        assert HIDDEN_VALUE not in str(refused.value)
        assert pipeline.rows() == before

    @pytest.mark.parametrize("mode", MODES)
    def test_03_a_key_that_comes_twice_in_a_batch_fails_the_run(self, bench: Workbench, mode: str) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, _twice()), **MODES[mode])
        with pytest.raises(DataError):
            pipeline.run(control=ScriptedControl(10))
        assert pipeline.rows() == {}

    def test_03_a_key_that_comes_twice_in_a_load_fails_the_run(self, bench: Workbench) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, _twice()))
        with pytest.raises(DataError):
            pipeline.run(control=ScriptedControl(1))
        assert pipeline.rows() == {}

    @pytest.mark.parametrize("mode", MODES)
    def test_03_the_last_row_of_a_key_counts_where_the_pipeline_says_so(self, bench: Workbench, mode: str) -> None:
        options = {"on_duplicate_key": "last"}
        pipeline = bench.pipeline(ListTable(data.COLUMNS, _twice()), options=options, **MODES[mode])
        pipeline.run(control=ScriptedControl(10))
        assert pipeline.is_equal()

    # -- (4) types ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("lane", list(Lane))
    def test_04_values_of_every_type_are_stored_exactly(self, bench: Workbench, lane: Lane, mode: str) -> None:
        columns, rows = sample_rows(bench.case.types, bench.case.refused)
        _skip_other_lanes(bench, lane)
        pipeline = bench.pipeline(ListTable(columns, lanes=(lane,)), **MODES[mode] | {"incremental_key": "id"})
        pipeline.run()
        pipeline.table.rows = rows
        pipeline.run(control=ScriptedControl(3))
        assert pipeline.is_equal()

    def test_04_a_type_that_is_not_stored_exactly_is_a_finding(self, bench: Workbench) -> None:
        for type_name in SAMPLES.keys() - set(bench.case.types):
            table = ListTable((*data.COLUMNS, Column("value", type_name)))
            with unstored(bench, table) as sink:
                findings = [one for one in sink.describe(table.columns).findings if one.column == "value"]
            assert findings, f"describe reports nothing about a column of type {type_name}"

    def test_04_a_value_that_the_target_cannot_hold_is_a_reject(self, bench: Workbench) -> None:
        values = [(name, value) for name, refused in bench.case.refused.items() for value in refused]
        for number, (type_name, value) in enumerate(values, 1):
            table = ListTable((*data.COLUMNS, Column("value", type_name)))
            table.rows = [{**data.row(number), "value": value}, {**data.row(99), "value": None}]
            pipeline = bench.pipeline(table, options={"on_reject": "quarantine"})
            pipeline.run(control=ScriptedControl(10))
            assert set(pipeline.rows()) == {("99",)}, f"{type_name} {value}"
            (reject,) = pipeline.open_rejects()
            assert (reject["key"], reject["column_name"]) == (str(number), "value")

    # -- (5) rejects ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("mode", MODES)
    def test_05_one_row_of_a_thousand_is_quarantined_and_healed(self, bench: Workbench, mode: str) -> None:
        pipeline = _with_a_bad_row(bench, mode, on_reject="quarantine")
        with simulated(bench, pipeline, Fault.ONE_ROW_REFUSED):
            control = ScriptedControl(1000)
            assert pipeline.run(control=control) is Outcome.FINISHED
            assert control.counts.rejected == 1
            fitting = {key: one for key, one in pipeline.table.by_key().items() if key != ("500",)}
            assert pipeline.rows() == fitting
            (reject,) = pipeline.open_rejects()
            assert reject["key"] == "500"
            assert reject["column_name"] in ("note", None)
            assert reject["code"]
            assert REFUSED not in reject["reason"]
            pipeline.table.put(**data.row(500, "corrected", 5000))
            pipeline.run(control=ScriptedControl(1000))
        assert pipeline.open_rejects() == []
        assert pipeline.is_equal()

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("options", [{"on_reject": "fail"}, {"on_reject": "quarantine", "max_rejects": 0}])
    def test_05_a_policy_that_allows_no_reject_saves_nothing(
        self, bench: Workbench, mode: str, options: dict[str, Any]
    ) -> None:
        pipeline = _with_a_bad_row(bench, mode, **options)
        before = pipeline.state().position
        with simulated(bench, pipeline, Fault.ONE_ROW_REFUSED), pytest.raises(DataError) as refused:
            pipeline.run(control=ScriptedControl(1000))
        assert "500" in str(refused.value)
        assert REFUSED not in str(refused.value)
        assert pipeline.state().position == before
        assert pipeline.open_rejects() == []

    # -- (15) delete ----------------------------------------------------------------------------------------------

    def test_15_delete_removes_rows_by_key_and_ignores_missing_keys(self, bench: Workbench) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, data.rows(1, 5)), **INCREMENTAL)
        pipeline.run()
        with opened(pipeline.claim()) as run:
            assert run.delete([("2",), ("4",), ("77",)]).counts.deleted == 2
            pipeline.table.remove("2")
            pipeline.table.remove("4")
            assert pipeline.is_equal()
            assert run.delete([("2",)]).counts.deleted == 0
            pipeline.table.put(**data.row(2, "back again", 9))
            run.write()
        assert pipeline.is_equal()

    def test_15_a_late_write_does_not_bring_a_deleted_row_back(self, bench: Workbench) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, data.rows(1, 3)), **INCREMENTAL)
        pipeline.run()
        with opened(pipeline.claim()) as late:
            old = list(late.batches())
            successor = pipeline.take_over()
            assert successor is not None
            with opened(successor) as run:
                run.delete([("2",)])
                for batch in old:
                    with pytest.raises(VitrineError):
                        late.commit(batch)
        pipeline.table.remove("2")
        assert pipeline.is_equal()


def _twice() -> list[dict[str, str | None]]:
    return [*data.rows(1, 3), data.row(2, "the last", 9)]


def _skip_other_lanes(bench: Workbench, lane: Lane) -> None:
    if lane is Lane.FRAMES and not registry.has_frames():
        pytest.skip("the extra `frames` is not installed")
    with unstored(bench, ListTable(data.COLUMNS)) as sink:
        if lane not in sink.describe(data.COLUMNS).lanes:
            pytest.skip(f"the sink does not take rows in lane {lane}")


def _with_a_bad_row(bench: Workbench, mode: str, **options: Any) -> StoredPipeline:
    """The next run has a thousand rows, of which the target can refuse one."""
    pipeline = bench.pipeline(ListTable(data.COLUMNS, data.rows(1, 1)), options=options, **MODES[mode])
    pipeline.run()
    pipeline.table.rows += [*data.rows(2, 499), data.row(500, REFUSED), *data.rows(501, 1000)]
    return pipeline
