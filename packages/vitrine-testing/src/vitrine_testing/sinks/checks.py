"""Checks: rows that break one are not visible, whether a sink honours the check or refuses the definition."""

from collections.abc import Mapping

import pytest

from vitrine.core.protocols import Outcome
from vitrine.errors import ConfigError, DataError, VitrineError
from vitrine_testing import data
from vitrine_testing.lists import ListTable
from vitrine_testing.workbench import StoredPipeline, Workbench

NOT_NULL = {"type": "not_null", "columns": ["note"]}
COUNT = {"type": "row_count", "min": 2}


class CheckTests:
    """Number 24."""

    @pytest.mark.parametrize("severity", ["fail", "warn"])
    @pytest.mark.parametrize("mode", ["full", "incremental"])
    def test_24_rows_that_break_a_check_are_visible_only_with_a_warning(
        self, bench: Workbench, mode: str, severity: str
    ) -> None:
        pipeline = _pipeline(bench, mode, NOT_NULL | {"severity": severity})
        if not _honours(pipeline):
            return
        before, position = pipeline.rows(), pipeline.state().position
        pipeline.table.put(**data.row(2, second=20) | {"note": None})
        if severity == "warn":
            assert pipeline.run() is Outcome.FINISHED
            assert pipeline.is_equal()
            return
        with pytest.raises(DataError) as refused:
            pipeline.run()
        assert refused.value.code == "CHECK_FAILED"
        assert "1 row with NULL in 'note', for example 2" in str(refused.value)
        assert pipeline.rows() == before
        assert pipeline.state().position == position
        assert not pipeline.state().generation_open
        pipeline.table.put(**data.row(2, "mended", 30))
        assert pipeline.run() is Outcome.FINISHED
        assert pipeline.is_equal()

    def test_24_a_first_load_that_breaks_a_check_creates_nothing_that_readers_see(self, bench: Workbench) -> None:
        table = ListTable(data.COLUMNS, data.rows(1, 1), bound=data.moment(100))
        pipeline = bench.pipeline(table, mode="incremental", incremental_key="modified", checks=[COUNT])
        with pytest.raises((ConfigError, DataError)) as refused:
            pipeline.run()
        if _is_unsupported(refused.value):
            return
        assert refused.value.code == "CHECK_FAILED"
        assert pipeline.rows() == {}
        table.rows += data.rows(2, 3)
        assert pipeline.run() is Outcome.FINISHED
        assert pipeline.is_equal()

    def test_24_a_check_of_an_unknown_column_is_refused_before_a_row_is_moved(self, bench: Workbench) -> None:
        table = ListTable(data.COLUMNS, data.rows(1, 3))
        pipeline = bench.pipeline(table, checks=[{"type": "not_null", "columns": ["nowhere"]}])
        with pytest.raises(ConfigError) as refused:
            pipeline.run()
        assert refused.value.code in ("CHECK_COLUMN", "CHECK_UNSUPPORTED")
        assert pipeline.rows() == {}


def _pipeline(bench: Workbench, mode: str, check: Mapping[str, object]) -> StoredPipeline:
    """Its next run reads changes, or everything."""
    table = ListTable(data.COLUMNS, data.rows(1, 5), bound=data.moment(100))
    cursor = {"mode": "incremental", "incremental_key": "modified"} if mode == "incremental" else {}
    return bench.pipeline(table, checks=[check], **cursor)


def _honours(pipeline: StoredPipeline) -> bool:
    """Whether the sink carries out the checks of the pipeline; otherwise it must refuse to run it."""
    try:
        pipeline.run()
    except ConfigError as refused:
        if not _is_unsupported(refused) or pipeline.rows():
            raise
        return False
    return True


def _is_unsupported(refused: VitrineError) -> bool:
    return refused.code == "CHECK_UNSUPPORTED"
