"""A function that yields rows is a source of batches."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.helpers.tasks import register
from vitrine.connectors.python_reader.source import PythonReaderSource
from vitrine.core.protocols import Limits, Throttle
from vitrine.core.rows import ALL_KEYS, START, Batch, Column, Compare, KeyRange, Lane, Position, PythonRows, Read
from vitrine.definition.connectors import NoOptions
from vitrine.definition.context import RunInfo, SourceJob
from vitrine.definition.model import Definition
from vitrine.definition.registry import Kind, Task
from vitrine.errors import ConfigError, DataError, TransientError, VitrineError
from vitrine.plan.planner import NoLease

COLUMNS = (Column("n", "integer"), Column("word", "text"))


@dataclass
class Readers:
    """Builds sources over functions."""

    monkeypatch: pytest.MonkeyPatch

    def source(self, function: Callable[[Any], Any], **fields: Any) -> PythonReaderSource:
        columns = tuple((column.name, column.type) for column in COLUMNS)
        register(self.monkeypatch, Task("under_test", Kind.READER, function, None, columns))
        fields = {"name": "words", "python_task": "under_test", "target_table": "analytics.words", **fields}
        definition = Definition.model_validate(fields)
        return PythonReaderSource(SourceJob(definition, NoOptions(), NoOptions(), NoLease(), RunInfo("tests")))

    def read(
        self,
        function: Callable[[Any], Any],
        after: Position = START,
        *,
        size: int = 2,
        order: tuple[str, ...] = ("n",),
        **fields: Any,
    ) -> list[Batch]:
        read = Read(Lane.ROWS, order, after, **fields)
        return list(self.source(function).batches(read, Throttle(Limits(size))))

    def refusal(self, function: Callable[[Any], Any], kind: type[VitrineError] = DataError) -> str:
        with pytest.raises(kind) as refused:
            self.read(function)
        assert "S3CR3T" not in str(refused.value)
        return str(refused.value)


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> Readers:
    return Readers(monkeypatch)


def rows(*numbers: int | None) -> list[dict[str, Any]]:
    return [{"n": number, "word": "S3CR3T"} for number in numbers]


def numbers(batches: Iterable[Batch]) -> list[list[int]]:
    return [[row["n"] for row in batch.payload.rows] for batch in batches if isinstance(batch.payload, PythonRows)]


def test_rows_are_cut_into_batches_each_with_its_end(readers: Readers) -> None:
    batches = readers.read(lambda after: rows(1, 2, 3))
    assert numbers(batches) == [[1, 2], [3]]
    assert [batch.end for batch in batches] == [("2",), ("3",)]
    assert [batch.position for batch in batches] == [Position(("2",)), Position(("3",))]


def test_nothing_to_read_is_one_empty_batch_at_the_same_position(readers: Readers) -> None:
    (batch,) = readers.read(lambda after: [], Position(("7",)))
    assert (batch.count, batch.end, batch.position) == (0, ("7",), Position(("7",)))
    assert batch.columns == COLUMNS


def test_a_full_last_batch_is_not_followed_by_an_empty_one(readers: Readers) -> None:
    assert numbers(readers.read(lambda after: rows(1, 2))) == [[1, 2]]


def test_rows_up_to_the_cursor_are_skipped(readers: Readers) -> None:
    assert numbers(readers.read(lambda after: rows(1, 2, 3), Position(("2",)))) == [[3]]


def test_a_cursor_with_fewer_columns_than_the_order_is_inclusive(readers: Readers) -> None:
    batches = readers.read(lambda after: rows(1, 2, 3), Position(("2",)), order=("n", "word"))
    assert numbers(batches) == [[2, 3]]
    assert batches[-1].end == ("3", "S3CR3T")


def test_the_function_gets_the_cursor(readers: Readers) -> None:
    asked: list[Any] = []
    readers.read(lambda after: asked.append(after) or [], Position(("2",)))
    assert asked == [("2",)]


def test_a_cancelled_reader_stops_at_the_next_row(readers: Readers) -> None:
    source = readers.source(lambda after: rows(1, 2, 3, 4, 5, 6))
    batches = source.batches(Read(Lane.ROWS, ("n",)), Throttle(Limits(2)))
    next(batches)
    source.cancel()
    assert numbers(batches) in ([], [[3]])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"limit": 0}, [list[int]()]),
        ({"limit": 3}, [[1, 2], [3]]),
        ({"limit": 9}, [[1, 2], [3, 10]]),
        ({"only": [("10",), ("2",), ("77",)]}, [[2, 10]]),
        ({"only": ALL_KEYS}, [[1, 2], [3, 10]]),
        ({"only": KeyRange(("2",), ("10",))}, [[2, 3]]),  # numbers by value: as texts, 3 would be above 10
        ({"only": KeyRange(("2",), None), "limit": 2}, [[2, 3]]),
    ],
)
def test_a_read_may_be_limited_to_some_keys_or_rows(
    readers: Readers, fields: dict[str, Any], expected: list[list[int]]
) -> None:
    assert numbers(readers.read(lambda after: rows(1, 2, 3, 10), **fields)) == expected


def test_rows_without_a_cursor_are_skipped_on_request(readers: Readers) -> None:
    assert numbers(readers.read(lambda after: rows(None, 1, None, 2), skip_null=True)) == [[1, 2]]


@pytest.mark.parametrize(
    ("yielded", "sentence"),
    [
        (rows(2, 1), "does not yield its rows in the order of n, see key 1"),
        (rows(1, 1), "does not yield its rows in the order of n, see key 1"),
        ([{"n": 1}], "yielded a row whose columns are not the declared ones: word"),
        ([{"n": 1, "word": "", "more": 1}], "yielded a row whose columns are not the declared ones: more"),
        ([{"n": None, "word": "S3CR3T"}], "yielded a row with NULL in n"),
        ([(1, "S3CR3T")], "yielded a tuple, not a row"),
        ([{"n": 1, "word": ""}, {"n": "2", "word": ""}], "yields values that cannot be compared with those before"),
        (None, "raised TypeError"),
    ],
)
def test_rows_that_are_not_as_declared_are_reported(readers: Readers, yielded: Any, sentence: str) -> None:
    assert f"reader 'under_test' {sentence}" in readers.refusal(lambda after: yielded)


def test_an_exception_is_reported_with_its_type_and_the_last_key(readers: Readers) -> None:
    def broken(after: Any) -> Any:
        yield from rows(1, 2, 3)
        raise ValueError("S3CR3T")

    line = broken.__code__.co_firstlineno + 2
    place = f"{__name__.replace('.', '/')}.py:{line}"
    assert readers.refusal(broken) == f"reader 'under_test' raised ValueError in {place} after key 3"


def test_an_error_of_the_network_is_worth_another_attempt(readers: Readers) -> None:
    def broken(after: Any) -> Any:
        raise ConnectionResetError("S3CR3T")

    place = f"{__name__.replace('.', '/')}.py:{broken.__code__.co_firstlineno + 1}"
    refused = readers.refusal(broken, TransientError)
    assert refused == f"reader 'under_test' raised ConnectionResetError in {place}"


def test_a_reader_describes_its_columns_and_is_code_of_the_user(readers: Readers) -> None:
    source = readers.source(lambda after: [])
    info = source.describe()
    assert (info.columns, info.lanes, info.user_code) == (COLUMNS, (Lane.ROWS,), True)
    assert info.fingerprint == "under_test "
    assert source.watermark("n") is None
    assert source.digest(Compare(COLUMNS[:1], COLUMNS)) is None


def test_a_definition_without_a_reader_is_refused(readers: Readers) -> None:
    with pytest.raises(ConfigError, match="no reader is named"):
        readers.source(lambda after: [], source_query="SELECT 1")
