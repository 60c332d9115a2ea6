"""The conformance suite of sources: subclass it, give it a case, and every promise of a source is tested."""

import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from vitrine import input_errors, settings
from vitrine.compare.digests import digest_rows
from vitrine.core.protocols import Limits, Source, Throttle
from vitrine.core.rows import START, Batch, Column, Compare, Cursor, KeyRange, Lane, Position, Read
from vitrine.definition.model import Definition
from vitrine.errors import DataError, TransientError, VitrineError
from vitrine.plan import planner
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine_testing import data
from vitrine_testing.binary import to_canonical_text
from vitrine_testing.cases import Fault, NotSimulated, SourceCase, Texts
from vitrine_testing.data import sample_rows
from vitrine_testing.sinks.actions import HIDDEN_VALUE, WAIT_SECONDS, in_thread, open_files, texts_of

BY_CURSOR = ("modified", "id")
BY_KEY = ("id",)
ROWS = [data.row(number, second=1 + number // 4) for number in range(1, 13)]
"""Twelve rows in the order of both: groups of four have the same time."""


class SourceBench:
    """Sources of a case, and their rows in canonical text."""

    def __init__(self, case: SourceCase, settings: Settings, connection: Connection) -> None:
        self.case = case
        self.settings = settings
        self._connection = connection

    def definition(self, fields: Mapping[str, Any], **more: Any) -> Definition:
        defaults = {
            "name": "conformance",
            "target_table": "analytics.conformance",
            "key_columns": ["id"],
            "mode": "incremental",
            "incremental_key": "modified",
        }
        return Definition.model_validate({**defaults, **fields, **more})

    @contextmanager
    def source(self, fields: Mapping[str, Any], **more: Any) -> Generator[Source]:
        """The source of a definition."""
        checked = planner.check(self.definition(fields, **more), self.settings)
        try:
            yield checked.source
        finally:
            checked.source.close()
            checked.sink.close()

    @contextmanager
    def created(self, rows: Sequence[Texts] = ROWS, columns: Sequence[Column] = data.COLUMNS) -> Generator[Source]:
        """A source over a new place with these rows."""
        with self.source(self.case.create(columns, rows)) as source:
            yield source

    def texts(self, batches: Iterable[Batch]) -> list[Texts]:
        return [row for batch in batches for row in texts_of(self.canonical(batch))]

    def canonical(self, batch: Batch) -> Batch:
        return replace(batch, payload=to_canonical_text(self._connection, batch))


class SourceConformance:
    """Subclass it as `class TestMySource(SourceConformance)` with a fixture `case` that returns a SourceCase."""

    @pytest.fixture
    def case(self) -> SourceCase:
        raise NotImplementedError("override the fixture `case`: it returns your SourceCase")

    @pytest.fixture
    def bench(
        self,
        case: SourceCase,
        monkeypatch: pytest.MonkeyPatch,
        vitrine_store_url: str,
        vitrine_connection: Connection,
    ) -> SourceBench:
        for name, value in {"VITRINE_DATABASE_URL": vitrine_store_url, **case.settings()}.items():
            monkeypatch.setenv(name, value)
        return SourceBench(case, settings.load(), vitrine_connection)

    # -- (1) complete and ordered ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("order", [BY_CURSOR, BY_KEY])
    @pytest.mark.parametrize("size", [1, 2, 5, 100])
    def test_01_a_read_is_complete_and_in_order(self, bench: SourceBench, order: tuple[str, ...], size: int) -> None:
        with bench.created() as source:
            batches = read_all(source, size, order=order)
            assert bench.texts(batches) == ROWS
            assert all(batch.count <= size for batch in batches)

    # -- (2) resume -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("order", [BY_CURSOR, BY_KEY])
    @pytest.mark.parametrize("size", [1, 3])
    def test_02_a_read_continues_after_every_end_and_every_position(
        self, bench: SourceBench, order: tuple[str, ...], size: int
    ) -> None:
        with bench.created() as source:
            count = 0
            for batch in read_all(source, size, order=order):
                count += batch.count
                after_end = read_all(source, 100, order=order, after=Position(batch.end))
                assert bench.texts(after_end) == ROWS[count:]
                after_position = bench.texts(read_all(source, 100, order=order, after=batch.position))
                assert after_position[-len(ROWS[count:]) :] == ROWS[count:] or count == len(ROWS)

    def test_02_a_cursor_of_one_element_is_inclusive(self, bench: SourceBench) -> None:
        with bench.created() as source:
            batches = read_all(source, 100, after=Position((data.moment(2),)))
            assert bench.texts(batches) == [row for row in ROWS if str(row["modified"]) >= data.moment(2)]

    # -- (3) at least one batch -----------------------------------------------------------------------------------

    def test_03_an_empty_read_is_one_empty_batch(self, bench: SourceBench) -> None:
        with bench.created([]) as source:
            (batch,) = read_all(source, 10)
            assert (batch.count, batch.end, batch.position) == (0, None, START)
            assert batch.columns == source.describe().columns

    def test_03_a_read_after_the_last_row_stays_where_it_is(self, bench: SourceBench) -> None:
        with bench.created() as source:
            last = read_all(source, 100)[-1]
            (batch,) = read_all(source, 10, after=Position(last.end))
            assert (batch.count, batch.end, batch.position) == (0, last.end, Position(last.end))

    # -- (4) the watermark ----------------------------------------------------------------------------------------

    def test_04_a_position_never_passes_the_watermark(self, bench: SourceBench) -> None:
        with bench.created() as source:
            mark = source.watermark("modified")
            if mark is None:
                pytest.skip("nothing holds the position back")
            held = replace(mark, bound=data.moment(3))
            for batch in read_all(source, 2, watermark=held):
                assert batch.position.cursor is not None
                assert batch.end is not None
                below = batch.end[0] < data.moment(3)
                assert batch.position == (Position(batch.end) if below else Position((data.moment(3),)))

    def test_04_a_position_beyond_the_watermark_stays_where_it_is(self, bench: SourceBench) -> None:
        with bench.created() as source:
            mark = source.watermark("modified")
            if mark is None:
                pytest.skip("nothing holds the position back")
            after, held = Position((data.moment(3), "9")), replace(mark, bound=data.moment(2))
            batches = read_all(source, 2, after=after, watermark=held)
            assert {batch.position for batch in batches} == {after}
            # a read that is resumed has passed the position it began with
            resumed = read_all(
                source,
                2,
                after=after,
                watermark=replace(mark, bound=data.moment(2)),
                held_at=Position((data.moment(2),)),
            )
            assert {batch.position for batch in resumed} == {Position((data.moment(2),))}

    def test_04_a_row_that_commits_late_is_read_later(self, bench: SourceBench) -> None:
        fields = bench.case.create(data.COLUMNS, ROWS)
        with bench.source(fields) as source, ExitStack() as open_transaction:
            try:
                late = open_transaction.enter_context(bench.case.late_commit(fields))
            except NotSimulated as exc:
                pytest.skip(str(exc))
            newer = {**data.row(50), "modified": f"{datetime.now(UTC) + timedelta(seconds=1):%Y-%m-%d %H:%M:%S}+00"}
            bench.case.put(fields, newer)
            batches = read_all(source, 5, watermark=source.watermark("modified"))
            assert newer in bench.texts(batches)
            assert late not in bench.texts(batches)
            open_transaction.close()
            again = read_all(source, 5, after=batches[-1].position)
            assert late in bench.texts(again)

    # -- (5) selections -------------------------------------------------------------------------------------------

    def test_05_rows_are_selected_by_keys_and_by_range(self, bench: SourceBench) -> None:
        with bench.created() as source:
            chosen = read_all(source, 2, order=BY_KEY, only=[("3",), ("11",), ("99",)])
            assert [row["id"] for row in bench.texts(chosen)] == ["3", "11"]
            # by value, not by text: 9 comes before 11
            inside = read_all(source, 2, order=BY_KEY, only=KeyRange(("9",), ("12",)))
            assert [row["id"] for row in bench.texts(inside)] == ["9", "10", "11"]
            below = read_all(source, 2, order=BY_KEY, only=KeyRange(None, ("3",)))
            assert [row["id"] for row in bench.texts(below)] == ["1", "2"]
            assert bench.texts(read_all(source, 2, order=BY_KEY, only=[])) == []

    def test_05_a_range_of_the_cursor_begins_with_its_first_value_and_ends_before_its_last(
        self, bench: SourceBench
    ) -> None:
        start, end = data.moment(1), data.moment(3)
        expected = [row for row in ROWS if start <= str(row["modified"]) < end]
        assert expected
        with bench.created() as source:
            ranged: dict[str, Any] = {"until": end, "filter_at": data.moment(0)}
            assert bench.texts(read_all(source, 2, after=Position((start,)), **ranged)) == expected
            (first, *_) = read_all(source, 2, after=Position((start,)), **ranged)
            assert bench.texts(read_all(source, 2, after=Position(first.end), **ranged)) == expected[2:]
            assert bench.texts(read_all(source, 2, after=Position((start,)), until=start)) == []

    def test_05_a_limit_ends_the_read(self, bench: SourceBench) -> None:
        with bench.created() as source:
            assert bench.texts(read_all(source, 2, limit=5)) == ROWS[:5]

    def test_05_rows_without_a_cursor_are_left_out_if_asked_for(self, bench: SourceBench) -> None:
        with bench.created([*ROWS, {**data.row(13), "modified": None}]) as source:
            assert bench.texts(read_all(source, 5, skip_null=True)) == ROWS
            assert bench.texts(
                read_all(source, 5, skip_null=True, after=Position(("2024-01-01 00:00:03+00", "9")))
            ) == [row for row in ROWS if int(row["id"] or 0) > 9]

    # -- (6) lanes ------------------------------------------------------------------------------------------------

    def test_06_each_lane_has_the_same_rows(self, bench: SourceBench) -> None:
        columns, rows = sample_rows(bench.case.types)
        fields = bench.case.create(columns, rows)
        with bench.source(fields, mode="full", incremental_key=None) as source:
            for lane in source.describe().lanes:
                assert bench.texts(read_all(source, 3, lane=lane, order=BY_KEY)) == rows, f"lane {lane}"

    # -- (7) columns ----------------------------------------------------------------------------------------------

    def test_07_columns_are_as_described(self, bench: SourceBench) -> None:
        with bench.created() as source:
            described = source.describe()
            assert [(column.name, column.type) for column in described.columns] == [
                (column.name, column.type) for column in data.COLUMNS
            ]
            assert {batch.columns for batch in read_all(source, 5)} == {described.columns}
            assert getattr(type(source), "lanes", described.lanes) == described.lanes

    def test_07_columns_that_changed_since_they_were_described_are_refused(self, bench: SourceBench) -> None:
        fields = bench.case.create(data.COLUMNS, ROWS)
        with bench.source(fields) as source:
            lane = lane_of(source)
            try:
                bench.case.add_column(fields)
            except NotSimulated as exc:
                pytest.skip(str(exc))
            with pytest.raises(VitrineError) as refused:
                read_all(source, 5, lane=lane)
        assert refused.value.code == "SCHEMA_CHANGED"

    # -- (8) NULL in the order ------------------------------------------------------------------------------------

    def test_08_a_null_in_the_order_is_an_error(self, bench: SourceBench) -> None:
        rows = [*ROWS, {**data.row(13, HIDDEN_VALUE), "modified": None}]
        with bench.created(rows) as source, pytest.raises(DataError) as refused:
            read_all(source, 5)
        assert HIDDEN_VALUE not in str(refused.value)

    # -- (9) digest -----------------------------------------------------------------------------------------------

    def test_09_the_digest_is_that_of_the_rows(self, bench: SourceBench) -> None:
        columns, rows = sample_rows(bench.case.types)
        fields = bench.case.create(columns, rows)
        with bench.source(fields, mode="full", incremental_key=None) as source:
            compare = Compare((columns[0],), columns, (KeyRange(None, ("4",)), KeyRange(("4",), None)))
            computed = source.digest(compare)
            if computed is None:
                pytest.skip("the source computes no digest")
            streamed = [bench.canonical(batch) for batch in read_all(source, 100, order=BY_KEY)]
            assert list(computed) == digest_rows(streamed, compare)
            by_key = replace(compare, by_key=True)
            found = source.digest(by_key) or ()
            assert {one.range.low: one for one in found} == {
                one.range.low: one for one in digest_rows(streamed, by_key)
            }

    # -- (10) the throttle ----------------------------------------------------------------------------------------

    def test_10_a_throttle_that_changes_cuts_the_next_batch(self, bench: SourceBench) -> None:
        with bench.created() as source:
            throttle = Throttle(Limits(2))
            counts: list[int] = []
            for batch in source.batches(Read(lane_of(source), BY_CURSOR), throttle):
                counts.append(batch.count)
                throttle.limits = Limits(5)
        assert counts == [2, 5, 5]

    # -- (11) the end ---------------------------------------------------------------------------------------------

    def test_11_a_call_ends_soon_after_it_is_cancelled(self, bench: SourceBench) -> None:
        fields = bench.case.create(data.COLUMNS, ROWS)
        with bench.source(fields) as source:
            lane = lane_of(source)
            with simulated(bench, fields, Fault.BLOCKED):
                ended = in_thread(lambda: list(source.batches(Read(lane, BY_CURSOR), Throttle(Limits(5)))))
                assert not ended.wait(0.3), "the read did not wait: the case does not block it"
                started = time.monotonic()
                while not ended.wait(0.05) and time.monotonic() - started < WAIT_SECONDS:
                    source.cancel()
                assert ended.is_set(), f"the read did not end within {WAIT_SECONDS:g} s"

    def test_11_a_closed_source_leaves_nothing_behind(self, bench: SourceBench) -> None:
        with bench.created() as source:
            read_all(source, 5)
        threads, files = set(threading.enumerate()), open_files()
        with bench.created() as source:
            list(source.batches(Read(lane_of(source), BY_CURSOR), Throttle(Limits(5))))
            next(iter(source.batches(Read(lane_of(source), BY_CURSOR), Throttle(Limits(5)))))
            source.close()
            source.close()
        assert set(threading.enumerate()) <= threads
        assert open_files() <= files

    def test_11_a_source_that_is_down_is_a_transient_error_and_its_constructor_opens_nothing(
        self, bench: SourceBench
    ) -> None:
        fields = bench.case.create(data.COLUMNS, ROWS)
        with simulated(bench, fields, Fault.DOWN):
            files = open_files()
            with bench.source(fields) as source:
                assert open_files() <= files
                with pytest.raises(TransientError):
                    source.describe()

    def test_11_an_unknown_option_is_named(self, bench: SourceBench) -> None:
        with pytest.raises(ValidationError) as refused:
            bench.definition(bench.case.create(data.COLUMNS, ROWS), options={"no_such_option": 1})
        (error,) = input_errors.explain(refused.value.errors())
        assert "options.no_such_option" in error.sentence


def lane_of(source: Source) -> Lane:
    return source.describe().lanes[0]


def read_all(
    source: Source, size: int, *, lane: Lane | None = None, order: Cursor = BY_CURSOR, **fields: Any
) -> list[Batch]:
    """Every batch of a read, each of at most this many rows."""
    read = Read(lane or lane_of(source), order, **fields)
    return list(source.batches(read, Throttle(Limits(size))))


@contextmanager
def simulated(bench: SourceBench, fields: Mapping[str, Any], fault: Fault) -> Generator[None]:
    """The fault lasts until the block ends; the test is skipped where the case has no such fault."""
    with ExitStack() as lasting:
        try:
            lasting.enter_context(bench.case.fault(fields, fault))
        except NotSimulated as exc:
            pytest.skip(f"{fault}: {exc}")
        yield
