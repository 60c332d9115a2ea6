"""Validation errors as sentences: what to give instead, without the value and without pydantic's own words."""

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from vitrine.api.parameters import Change
from vitrine.definition.model import Definition
from vitrine.input_errors import InputError, explain, field_path, unknown_field

GENRES: dict[str, Any] = {
    "name": "genres",
    "source_query": "SELECT id FROM content.genre",
    "target_table": "analytics.genres",
}


def sentences(expected: Any, value: Any) -> list[str]:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(expected).validate_python(value)
    return [mistake.sentence for mistake in explain(refused.value.errors(), expected)]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"source_qurey": "x"}, "no field `source_qurey`; did you mean `source_query`?"),
        ({"options": {"lookbak": "1h"}}, "no field `options.lookbak`; did you mean `options.lookback`?"),
        (
            {"tasks": [{"order_index": 1, "task_type": "SQL", "bdy": "x"}]},
            "no field `tasks[0].bdy`; did you mean `tasks[0].body`?",
        ),
        ({"wholly_different": 1}, "no field `wholly_different`; remove it"),
        ({"key_columns": "id"}, "key_columns: give a list, for example [id]"),
        ({"key_columns": [7]}, "key_columns[0]: give text"),
        ({"mode": "sometimes"}, "mode: give one of full, incremental"),
        ({"source_type": "My SQL"}, "source_type: start with a-z, then use only a-z, 0-9 and _; at most 63 characters"),
        ({"target_table": 3}, "target_table: give text"),
        ({"batch_size": "many"}, "batch_size: give a whole number from 1 to 50000, or give auto"),
        ({"batch_size": 0}, "batch_size: give a whole number from 1 to 50000, or give auto"),
        ({"batch_size": 50_001}, "batch_size: give a whole number from 1 to 50000, or give auto"),
        ({"enabled": "perhaps"}, "enabled: give true or false"),
        ({"description": "x" * 2001}, "description: give at most 2000 character(s)"),
        ({"options": "fast"}, "options: give a mapping of fields, for example {control_column: …}"),
        ({"options": {"max_delete_ratio": 2}}, "options.max_delete_ratio: give a number from 0 to 1"),
        ({"options": {"lookback": "soon"}}, "options.lookback: give a duration such as 30s, 5m or 1h"),
        ({"options": {"batch_timeout": "1ms"}}, "options.batch_timeout: give at least 1 second"),
        ({"tasks": "none"}, "tasks: give a list, for example [{…}]"),
        ({"tasks": ["SELECT 1"]}, "tasks[0]: give a mapping of fields, for example {order_index: …}"),
        ({"name": "Top Genres"}, "name: start with a-z, then use only a-z, 0-9 and _; at most 63 characters"),
        (
            {"incremental_key": "1st"},
            "incremental_key: start with A-Z, a-z or _, then use only A-Z, a-z, 0-9, _ and $; at most 63 characters",
        ),
        (
            {"tasks": [{"order_index": 1, "task_type": "SQL", "source_table": "genre"}]},
            "tasks[0].source_table: give 2 names joined by a dot; start each with a-z or _, then use only a-z, 0-9 and"
            " _; at most 63 characters each",
        ),
        (
            {"mode": "incremental"},
            "mode incremental needs incremental_key, the column that grows with every change",
        ),
    ],
)
def test_a_mistake_in_a_definition_is_a_sentence_with_its_remedy(fields: dict[str, Any], sentence: str) -> None:
    assert sentences(Definition, GENRES | fields) == [sentence]


def test_missing_fields_are_named() -> None:
    assert sentences(Definition, {}) == ["name: this field is required", "target_table: this field is required"]


def test_an_optional_field_of_a_change_is_explained_like_the_field_of_a_definition() -> None:
    assert sentences(Change, {"batch_size": 0, "key_columns": "id", "optoins": {}}) == [
        "key_columns: give a list, for example [id]",
        "batch_size: give a whole number from 1 to 50000, or give auto",
        "no field `optoins`; did you mean `options`?",
    ]
    assert sentences(Change | None, {"options": {"lookbak": "1h"}}) == [
        "no field `options.lookbak`; did you mean `options.lookback`?"
    ]


def _even(value: int) -> int:
    if value % 2:
        raise PydanticCustomError("odd", "Give an even number")
    return value


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Everything(BaseModel):
    model_config = ConfigDict(extra="forbid")

    day: date = date(2025, 1, 1)
    moment: datetime = datetime(2025, 1, 1)  # noqa: DTZ001 – only its type matters
    clock: time = time(12)
    wait: timedelta = timedelta(0)
    id: UUID | None = None
    price: Decimal = Decimal(0)
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    least: Annotated[int, Field(ge=3)] = 3
    third: Annotated[int, Field(multiple_of=3)] = 3
    even: Annotated[int, AfterValidator(_even)] = 2
    words: Annotated[list[str], Field(min_length=1, max_length=2)] = ["a"]
    numbers: set[int] = {1}
    either: int | list[int] = 1
    animal: Annotated[Cat | Dog, Field(discriminator="kind")] = Cat(kind="cat")
    limits: dict[str, int] = {}
    code: Annotated[str, Field(pattern="^[0-9]{4}-[A-Z]$", description="Four digits, a dash and a letter.")] = "1234-A"
    plate: Annotated[str, Field(pattern="^[0-9]{4}-[A-Z]$")] = "1234-A"
    level: Annotated[str, Field(pattern="^(low|high)$")] = "low"
    word: Annotated[str, Field(pattern="^[a-z0-9_]*$")] = ""
    folder: Path = Path()


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("day", "soon", "day: give a date such as 2025-01-31"),
        ("moment", "soon", "moment: give a date and time such as 2025-01-31T12:00:00Z"),
        ("clock", "soon", "clock: give a time such as 12:00:00"),
        ("wait", "soon", "wait: give a duration such as 00:05:00"),
        ("id", "soon", "id: give a UUID such as 5f0c6a52-3a55-4f0e-9a44-0d3f4f5f3c1e"),
        ("price", "soon", "price: give a number"),
        ("share", 1, "share: give a number above 0 and below 1"),
        ("least", 2, "least: give a whole number of at least 3"),
        ("third", 4, "third: give a multiple of 3"),
        ("even", 3, "even: give an even number"),
        ("words", "soon", "words: give a list, for example [a, b]"),
        ("words", [], "words: give at least 1 item(s)"),
        ("words", ["a", "b", "c"], "words: give at most 2 item(s)"),
        ("numbers", 1, "numbers: give a list, for example [1, 2]"),
        ("either", "soon", "either: give a whole number, or give a list, for example [1, 2]"),
        ("animal", {"kind": "cow"}, "animal: give kind as cat, dog"),
        ("limits", {"soon": "x"}, "limits.soon: give a whole number"),
        ("limits", [], "limits: give a mapping of names to values"),
        ("code", "soon", "code: this text has the wrong form; four digits, a dash and a letter"),
        ("plate", "soon", "plate: this text has the wrong form; the pattern is ^[0-9]{4}-[A-Z]$"),
        ("level", "soon", "level: give one of low, high"),
        ("word", "a b", "word: use only a-z, 0-9 and _"),
        ("folder", 3, "folder: give a path"),
    ],
)
def test_every_type_has_words_of_its_own(field: str, value: Any, sentence: str) -> None:
    assert sentences(Everything, {field: value}) == [sentence]


@pytest.mark.parametrize("field", [*Definition.model_fields, *Everything.model_fields, "unknown"])
@pytest.mark.parametrize("value", ["S3CR3T", ["S3CR3T"], {"x": "S3CR3T"}, -7.25, object()])
def test_no_sentence_repeats_the_value_or_the_words_of_pydantic(field: str, value: Any) -> None:
    for expected in (Definition, Everything):
        try:
            TypeAdapter(expected).validate_python({field: value})
        except ValidationError as exc:
            for with_schema in (expected, None):
                for mistake in explain(exc.errors(), with_schema):
                    assert "S3CR3T" not in mistake.sentence
                    assert "7.25" not in mistake.sentence
                    assert "nput should" not in mistake.sentence
                    assert "valid " not in mistake.sentence


def test_without_the_expected_type_bounds_and_choices_are_still_named() -> None:
    errors: list[dict[str, Any]] = [
        {"type": "less_than_equal", "loc": ("limit",), "msg": "Input should be …", "ctx": {"le": 200}},
        {"type": "int_parsing", "loc": ("before",), "msg": "Input should be …"},
        {
            "type": "literal_error",
            "loc": ("state",),
            "msg": "Input should be …",
            "ctx": {"expected": "'keep' or 'reset'"},
        },
        {"type": "extra_forbidden", "loc": ("x",), "msg": "Extra inputs are not permitted"},
    ]
    assert [mistake.sentence for mistake in explain(errors)] == [
        "limit: give at most 200",
        "before: give a whole number",
        "state: give one of keep, reset",
        "no field `x`; remove it",
    ]


class Opaque:
    """Nothing that JSON can express."""


class Required(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    number: int
    opaque: Opaque


class Defaulted(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    number: int
    opaque: Opaque | int = Opaque()


@pytest.mark.parametrize("model", [Required, Defaulted])
def test_a_model_without_a_json_schema_is_explained_all_the_same(model: type[BaseModel]) -> None:
    assert "number: give a whole number" in sentences(model, {"number": "x"})


def test_the_fields_of_a_small_model_are_listed() -> None:
    assert unknown_field(("options", "speed"), ["marks", "name"]).sentence == (
        "no field `options.speed`; the fields are marks, name"
    )


def test_a_location_is_a_path_and_a_name_from_the_input_is_shortened() -> None:
    assert field_path(("tasks", 0, "options", "marks")) == "tasks[0].options.marks"
    assert field_path(()) == ""
    assert field_path(("a\nb" + "x" * 100,)) == "a�b" + "x" * 57 + "…"


def test_the_place_of_the_validated_value_comes_first() -> None:
    errors = [{"type": "missing", "loc": ("marks",), "msg": "Field required"}]
    (mistake,) = explain(errors, inside=("options",))
    assert mistake == InputError(("options", "marks"), "this field is required")
    assert mistake.sentence == "options.marks: this field is required"
