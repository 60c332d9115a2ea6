"""What a sink says about its target: digests, stored rows, and the target itself."""

from dataclasses import replace

import pytest

from vitrine.compare import reconcile
from vitrine.compare.digests import digest_rows
from vitrine.core.keys import is_within
from vitrine.core.rows import ALL_KEYS, Column, Compare, Digest, Key, KeyRange, Lane
from vitrine.errors import ConfigError
from vitrine_testing import data
from vitrine_testing.cases import Fault, Texts
from vitrine_testing.control import ScriptedControl
from vitrine_testing.data import SAMPLES, sample_rows
from vitrine_testing.lists import ListTable
from vitrine_testing.sinks.actions import INCREMENTAL, OpenRun, opened, simulated, unstored
from vitrine_testing.workbench import Workbench

PARTS = 7


class ReadingTests:
    """Numbers 16 to 18."""

    # -- (16) digest ----------------------------------------------------------------------------------------------

    def test_16_the_digest_is_that_of_the_rows(self, bench: Workbench) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, data.rows(1, 100)))
        pipeline.run(control=ScriptedControl(50))
        with opened(pipeline.claim()) as run:
            whole = _check_digest(run)
            assert whole.rows == 100
            _check_parts(run, whole, pipeline.table.by_key())

    def test_16_the_digest_of_values_of_every_type_is_that_of_the_rows(self, bench: Workbench) -> None:
        pipeline = bench.pipeline(ListTable(*sample_rows(bench.case.types, bench.case.refused)))
        pipeline.run()
        with opened(pipeline.claim()) as run:
            _check_digest(run)

    @pytest.mark.parametrize("type_name", ["boolean", "uuid", "text", "bigint"])
    def test_16_keys_of_any_type_are_cut_into_ranges(self, bench: Workbench, type_name: str) -> None:
        columns = (Column("id", type_name), Column("other", "integer"))
        rows: list[Texts] = [
            {"id": sample, "other": str(number)} for number in range(10) for sample in SAMPLES[type_name]
        ]
        pipeline = bench.pipeline(ListTable(columns, rows), key_columns=["id", "other"])
        pipeline.run(control=ScriptedControl(100))
        with opened(pipeline.claim()) as run:
            _check_parts(run, _check_digest(run), pipeline.table.by_key(("id", "other")))

    def test_16_reconcile_sees_a_row_that_was_changed_by_hand(self, bench: Workbench) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, data.rows(1, 20)))
        pipeline.run()
        assert reconcile.compare(pipeline.definition, bench.settings).equal
        for row in (data.row(7, "changed by hand"), None):
            bench.case.change(pipeline.target, ("7",), row)
            assert not reconcile.compare(pipeline.definition, bench.settings).equal
        pipeline.run()
        assert reconcile.compare(pipeline.definition, bench.settings).equal

    # -- (17) fetch -----------------------------------------------------------------------------------------------

    def test_17_fetch_returns_the_exact_rows_by_keys_and_by_range(self, bench: Workbench) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, data.rows(1, 30)))
        pipeline.run(control=ScriptedControl(30))
        stored = pipeline.table.by_key()
        with opened(pipeline.claim()) as run:
            assert run.fetch(ALL_KEYS) == list(stored.values())
            assert run.fetch([("3",), ("21",), ("77",)]) == [stored["3",], stored["21",]]
            # by value, not by text: 9 comes before 11
            assert [row["id"] for row in run.fetch(KeyRange(("9",), ("12",)))] == ["9", "10", "11"]
            assert run.fetch(KeyRange(None, ("3",))) == [stored["1",], stored["2",]]
            assert run.fetch(KeyRange(("30",), None)) == [stored["30",]]
            assert run.fetch([]) == []
            assert run.fetch([("5",)], data.COLUMNS[:2]) == [{"id": "5", "note": "note 5"}]

    # -- (18) describe --------------------------------------------------------------------------------------------

    def test_18_describe_reports_the_target_as_it_is(self, bench: Workbench) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, data.rows(1, 3)))
        with unstored(bench, pipeline.table, target_table=pipeline.target) as sink:
            missing = sink.describe(data.COLUMNS)
        assert (missing.exists, missing.identity, missing.columns) == (False, None, ())
        pipeline.run()
        identities: list[str | None] = []
        for _ in range(2):
            with unstored(bench, pipeline.table, target_table=pipeline.target) as sink:
                there = sink.describe(data.COLUMNS)
                named: tuple[Lane, ...] = getattr(type(sink), "lanes", there.lanes)
            assert (there.exists, there.key, there.lanes) == (True, ("id",), named)
            assert {column.name for column in there.columns} == {column.name for column in data.COLUMNS}
            assert [one for one in there.findings if one.fatal] == []
            identities.append(there.identity)
        assert identities[0] == identities[1]
        assert identities[0] is not None

    def test_18_rows_without_the_key_are_a_fatal_finding(self, bench: Workbench) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, data.rows(1, 3)))
        pipeline.run()
        with unstored(bench, pipeline.table, target_table=pipeline.target) as sink:
            findings = sink.describe(data.COLUMNS[1:]).findings
        assert [one.column for one in findings if one.fatal] == ["id"]

    def test_18_a_target_that_was_removed_or_recreated_does_not_fit_the_checkpoint(self, bench: Workbench) -> None:
        pipeline = bench.pipeline(ListTable(data.COLUMNS, data.rows(1, 3), bound=data.moment(9)), **INCREMENTAL)
        pipeline.run()
        with unstored(bench, pipeline.table, target_table=pipeline.target) as sink:
            before = sink.describe().identity
        with simulated(bench, pipeline, Fault.TARGET_GONE):
            pass
        with pytest.raises(ConfigError) as removed:
            pipeline.run()
        assert removed.value.code == "TARGET_SCHEMA"
        with opened(pipeline.claim()) as run, run.sink.unit(run.held.checkpoint.stamp()) as unit:
            unit.write(next(run.batches()))
        with unstored(bench, pipeline.table, target_table=pipeline.target) as sink:
            assert sink.describe().identity not in (None, before)
        with pytest.raises(ConfigError) as recreated:
            pipeline.run()
        assert recreated.value.code == "TARGET_REPLACED"


def _compare(run: OpenRun) -> Compare:
    columns = {column.name: column for column in run.prepared.plan.target.columns}
    key = tuple(columns[name] for name in run.prepared.plan.target.key)
    return Compare(key, tuple(columns[column.name] for column in run.prepared.source.columns))


def _check_digest(run: OpenRun) -> Digest:
    """The digest of the stored rows: as the sink computes it, of what it returns, and of what the source has."""
    wanted = _compare(run)
    (whole,) = digest_rows(run.sink.fetch(ALL_KEYS, wanted.columns), wanted)
    assert [whole] == digest_rows(run.read(), wanted)
    computed = run.sink.digest(wanted)
    assert computed is None or list(computed) == [whole]
    return whole


def _check_parts(run: OpenRun, whole: Digest, stored: dict[Key, Texts]) -> None:
    """Cut into parts, every key is in exactly one range, and the sums are those of the whole."""
    wanted = _compare(run)
    parts = run.sink.digest(replace(wanted, parts=PARTS))
    if parts is None:
        return
    assert 1 < len(parts) <= PARTS
    assert sum(part.rows for part in parts) == whole.rows
    assert sum(part.hash for part in parts) == whole.hash
    for key in stored:
        assert sum(is_within(key, part.range, wanted.key) for part in parts) == 1
    ranged, figures = replace(wanted, ranges=tuple(part.range for part in parts)), [_figures(part) for part in parts]
    assert [_figures(part) for part in run.sink.digest(ranged) or ()] == figures
    streamed = digest_rows(run.sink.fetch(ALL_KEYS, wanted.columns), ranged)
    assert [_figures(part) for part in streamed] == figures
    _check_keys(run, replace(wanted, by_key=True))
    _check_keys(run, replace(wanted, by_key=True, ranges=tuple(part.range for part in parts[1::2])))
    _check_keys(run, replace(wanted, by_key=True, only=tuple(stored)[::3]))


def _check_keys(run: OpenRun, wanted: Compare) -> None:
    """One digest for each key of the comparison, with the hashes of its columns."""
    computed = run.sink.digest(wanted)
    streamed = digest_rows(run.sink.fetch(ALL_KEYS, wanted.columns), wanted)
    assert computed is not None
    assert {one.range.low: one for one in computed} == {one.range.low: one for one in streamed}
    assert len(computed) == len(streamed) > 0


def _figures(part: Digest) -> tuple[int, int]:
    return part.rows, part.hash
