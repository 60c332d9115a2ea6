"""The id of a document: the text of its key, and back."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from vitrine.connectors.elasticsearch import documents

TEXTS = some.text(some.sampled_from("|\\/ab\n é🎬") | some.characters(exclude_categories=["Cs"]), max_size=8)


def keys(width: int) -> some.SearchStrategy[tuple[str, ...]]:
    return some.tuples(*[TEXTS] * width)


def test_one_column_is_its_text_and_several_are_separated() -> None:
    assert documents.id_of(("a|b\\",)) == "a|b\\"
    assert documents.id_of(("a", "b")) == "a|b"
    assert documents.id_of(("a|", "\\b", "")) == "a\\||\\\\b|"


@pytest.mark.promise("F14")
@example(pair=(("x\\", "y|z"), ("x|y\\", "z")))
@example(pair=(("x|y", "z"), ("x", "y|z")))
@given(pair=some.integers(1, 4).flatmap(lambda width: some.tuples(keys(width), keys(width))))
def test_two_keys_never_have_one_id(pair: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    one, other = pair
    assert (documents.id_of(one) == documents.id_of(other)) == (one == other)


@pytest.mark.promise("F14")
@given(key=some.integers(1, 4).flatmap(keys))
def test_the_key_is_read_back_from_the_id(key: tuple[str, ...]) -> None:
    assert documents.key_of(documents.id_of(key), len(key)) == key


@given(rows=some.integers(1, 4).flatmap(lambda width: some.lists(keys(width), min_size=1, max_size=5)))
def test_ids_of_columns_are_those_of_the_keys(rows: list[tuple[str, ...]]) -> None:
    assert list(documents.ids_of(list(zip(*rows, strict=True)))) == [documents.id_of(row) for row in rows]


@pytest.mark.parametrize(("document_id", "width"), [("a", 2), ("a|b|c", 2), ("a\\x|b", 2), ("a|b\\", 2), ("", 3)])
def test_an_id_that_is_no_key_of_that_width_is_refused(document_id: str, width: int) -> None:
    with pytest.raises(ValueError, match="not a key of"):
        documents.key_of(document_id, width)


@pytest.mark.promise("F14")
def test_ids_are_neither_empty_nor_longer_than_512_bytes() -> None:
    assert documents.id_problem("") is not None
    assert documents.id_problem("a" * 512) is None
    assert documents.id_problem("a" * 513) is not None
    assert documents.id_problem("é" * 256) is None
    assert documents.id_problem("é" * 257) is not None
    assert documents.id_problem("🎬" * 129) is not None
