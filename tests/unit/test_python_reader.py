"""A function that yields rows becomes batches."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from vitrine.errors import ConfigError, DataError, TransientError, VitrineError
from vitrine.flow import START, Batch, Decoded, Position
from vitrine.pace import Limits, Pace
from vitrine.registry import Kind, Task
from vitrine.sources.python import PythonReader


def reader(function: Callable[[Any], Any], *cursor: str) -> PythonReader:
    task = Task("under_test", Kind.READER, function, None, (("n", "integer"), ("word", "text")))
    return PythonReader(task.validate({}), cursor or ("n",))


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [{"n": number, "word": "S3CR3T"} for number in numbers]


def read(function: Callable[[Any], Any], after: Position = START, size: int = 2) -> list[Batch]:
    return list(reader(function).batches(after, Pace(Limits(size))))


def numbers(batches: Iterable[Batch]) -> list[list[int]]:
    return [[row["n"] for row in batch.payload.rows] for batch in batches if isinstance(batch.payload, Decoded)]


def refusal(function: Callable[[Any], Any], kind: type[VitrineError] = DataError) -> str:
    with pytest.raises(kind) as refused:
        read(function)
    assert "S3CR3T" not in str(refused.value)
    return str(refused.value)


def test_rows_are_cut_into_batches_each_with_its_end() -> None:
    batches = read(lambda after: rows(1, 2, 3))
    assert numbers(batches) == [[1, 2], [3]]
    assert [batch.position for batch in batches] == [Position(("2",)), Position(("3",))]


def test_nothing_to_read_is_one_empty_batch_at_the_same_position() -> None:
    (batch,) = read(lambda after: [], Position(("7",)))
    assert (batch.count, batch.position, len(batch.columns)) == (0, Position(("7",)), 2)


def test_a_full_last_batch_is_not_followed_by_an_empty_one() -> None:
    assert numbers(read(lambda after: rows(1, 2))) == [[1, 2]]


def test_what_is_not_after_the_cursor_is_skipped() -> None:
    assert numbers(read(lambda after: rows(1, 2, 3), Position(("2",)))) == [[3]]


def test_the_function_gets_the_cursor() -> None:
    asked: list[Any] = []
    read(lambda after: asked.append(after) or [], Position(("2",)))
    assert asked == [("2",)]


def test_a_reader_that_was_given_up_stops_at_the_next_row() -> None:
    one = reader(lambda after: rows(1, 2, 3, 4, 5, 6))
    batches = one.batches(START, Pace(Limits(2)))
    next(batches)
    one.cancel()
    assert numbers(batches) in ([], [[3]])


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
def test_rows_that_are_not_as_declared_are_told(yielded: Any, sentence: str) -> None:
    assert f"reader 'under_test' {sentence}" in refusal(lambda after: yielded)


def test_an_exception_is_told_by_kind_and_last_key() -> None:
    def broken(after: Any) -> Any:
        yield from rows(1, 2, 3)
        raise ValueError("S3CR3T")

    assert refusal(broken) == "reader 'under_test' raised ValueError after key 3"


def test_a_trouble_of_the_network_is_worth_another_attempt() -> None:
    def broken(after: Any) -> Any:
        raise ConnectionResetError("S3CR3T")

    assert refusal(broken, TransientError) == "reader 'under_test' raised ConnectionResetError"


def test_a_cursor_that_is_no_column_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="has no column 'modified', which the pipeline names as key or cursor; it has: n, word"
    ):
        reader(lambda after: [], "modified")
