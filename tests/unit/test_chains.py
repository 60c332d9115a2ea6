"""What a definition may run after, and cycles in a chain."""

import pytest
from pydantic import ValidationError

from vitrine.definition.model import Definition
from vitrine.store.schedules import find_cycle

GENRES = {"name": "c", "source_query": "SELECT id FROM content.genre", "target_table": "analytics.c"}


def test_the_order_of_the_names_has_no_meaning() -> None:
    one, two = (Definition.model_validate({**GENRES, "after": names}) for names in (["b", "a"], ["a", "b"]))
    assert one == two
    assert one.after == ("a", "b")


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["a", "a"], "give each pipeline once"),
        (["c"], "a pipeline cannot run after itself"),
        (["No name"], "pattern"),
        ([f"p{n}" for n in range(51)], "at most 50"),
    ],
)
def test_names_that_cannot_be_a_chain_are_refused(names: list[str], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Definition.model_validate({**GENRES, "after": names})


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ({}, None),
        ({"b": ["a"], "c": ["a", "b"], "d": ["b", "c"]}, None),
        ({"b": ["a"], "a": ["b"]}, {"a", "b"}),
        ({"x": ["a"], "a": ["c"], "b": ["a"], "c": ["b"]}, {"a", "b", "c"}),
    ],
)
def test_a_cycle_is_named_from_each_pipeline_to_the_one_it_waits_for(
    after: dict[str, list[str]], found: set[str] | None
) -> None:
    cycle = find_cycle(after)
    assert (None if cycle is None else set(cycle)) == found
    for waiting, upstream in zip(cycle or [], (cycle or [])[1:], strict=False):
        assert upstream in after[waiting]
