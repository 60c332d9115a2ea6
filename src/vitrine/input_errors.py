"""Validation errors of pydantic as sentences that name the remedy."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast, get_args

Location = tuple[int | str, ...]
Schema = Mapping[str, Any]

MAX_NAME_LENGTH = 60
MAX_LISTED_FIELDS = 8


@dataclass(frozen=True)
class InputError:
    """One wrong field. Neither the reason nor the sentence repeats the value, which may be a secret."""

    location: Location  # empty: the input as a whole
    reason: str
    names_field: bool = False  # the reason contains the field already

    @property
    def field(self) -> str:
        return field_path(self.location)

    @property
    def sentence(self) -> str:
        return self.reason if self.names_field or not self.location else f"{self.field}: {self.reason}"


def field_path(location: Location) -> str:
    """`options.lookback`, `tasks[0].body`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{_shorten(part)}" for part in location)
    return "".join(parts).removeprefix(".")


def explain(
    errors: Iterable[Mapping[str, Any]],
    expected: Any = None,
    *,
    schema: Schema | None = None,
    inside: Location = (),
) -> list[InputError]:
    """The errors of a ValidationError, one per field. `inside` is the location of the validated value.

    `expected` is the model or type that was validated: it provides names, bounds and examples. `schema` is that of the
    same, for a caller that explains many errors: it takes 20 ms to build.
    """
    schema = schema_of(expected) if schema is None else schema
    explained: dict[Location, InputError] = {}
    for error in errors:
        place = _find(schema, error["loc"])
        location = (*inside, *place.location)
        if error["type"] == "extra_forbidden":
            explained[location] = unknown_field(location, list(place.parent.get("properties", ())))
            continue
        reason = _reason(error, place.node)
        known = explained.get(location)
        # every member of a union reports an error of its own
        if known is None:
            explained[location] = InputError(location, reason)
        elif reason not in known.reason:
            explained[location] = InputError(location, f"{known.reason}, or {reason}")
    return list(explained.values())


def unknown_field(location: Location, known: Sequence[str]) -> InputError:
    """A field that does not exist, with the nearest one that does."""
    from difflib import get_close_matches

    *parents, name = location
    if name in known:  # an option of a connector that this pipeline does not use
        text = f"`{field_path(location)}` does not apply to the source and target of this pipeline; remove it"
        return InputError(location, text, names_field=True)
    if close := get_close_matches(str(name), known, n=1):
        advice = f"did you mean `{field_path((*parents, close[0]))}`?"
    elif 0 < len(known) <= MAX_LISTED_FIELDS:
        advice = f"the fields are {', '.join(known)}"
    else:
        advice = "remove it"
    return InputError(location, f"no field `{field_path(location)}`; {advice}", names_field=True)


def _shorten(name: str) -> str:
    """A name from the input, short and without control characters."""
    printable = "".join(letter if letter.isprintable() else "�" for letter in name)
    return printable if len(printable) <= MAX_NAME_LENGTH else f"{printable[:MAX_NAME_LENGTH]}…"


# The place of an error in the JSON schema of what was expected


class _Place(NamedTuple):
    """Where an error is in the schema."""

    location: Location  # without pydantic's names for the members of a union
    node: Schema
    parent: Schema


def schema_of(expected: Any) -> Schema:
    """The JSON schema of a model or type, for `explain`."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticInvalidForJsonSchema
    from pydantic.json_schema import GenerateJsonSchema

    class Generator(GenerateJsonSchema):
        # a part that JSON cannot express is missing from the schema, which is no reason for a warning to the user
        ignored_warning_kinds = {"skipped-choice", "non-serializable-default", "skipped-discriminator"}  # noqa: RUF012

    if expected is None:
        return {}
    try:
        return TypeAdapter(expected).json_schema(schema_generator=Generator)
    except PydanticInvalidForJsonSchema:
        return {}


def _find(schema: Schema, location: Location) -> _Place:
    node: Schema = _resolve(schema, schema)
    parent: Schema = {}
    kept: list[int | str] = []
    for part in location:
        if members := node.get("anyOf") or node.get("oneOf"):
            # the part is pydantic's name for a member of the union
            named = node.get("discriminator", {}).get("mapping", {}).get(part)
            parent, node = {}, _resolve(schema, {"$ref": named} if named else _member(members, str(part)))
            continue
        kept.append(part)
        parent, node = node, _resolve(schema, _child(node, part))
    return _Place(tuple(kept), node, parent)


_TYPES = {"int": "integer", "float": "number", "str": "string", "list": "array", "tuple": "array", "dict": "object"}


def _member(members: Sequence[Schema], name: str) -> Schema:
    """The member of a union with this name of pydantic, such as `constrained-int`; empty where it is unknown."""
    kind = _TYPES.get(name.removeprefix("constrained-").partition("[")[0])
    return next((member for member in members if kind is not None and member.get("type") == kind), dict[str, Any]())


def _child(node: Schema, part: int | str) -> Schema:
    if isinstance(part, int):
        return node.get("items") or {}
    child = node.get("properties", {}).get(part, node.get("additionalProperties"))
    return cast(Schema, child) if isinstance(child, Mapping) else {}


def _resolve(schema: Schema, node: Schema) -> Schema:
    """The node without references, and without the null of an optional field."""
    while True:
        members = [member for member in node.get("anyOf", ()) if member.get("type") != "null"]
        if "$ref" in node:
            target: Schema = schema["$defs"][node["$ref"].rpartition("/")[2]]
        elif len(members) == 1:
            target = members[0]
        else:
            return node
        own = {name: value for name, value in node.items() if name not in ("$ref", "anyOf")}
        node = {**target, **own}


# The reason, by the type of the error


_TEXTS = {
    "missing": "this field is required",
    "none_required": "give no value",
    "finite_number": "give a finite number",
    "multiple_of": "give a multiple of {multiple_of}",
    "string_too_short": "give at least {min_length} character(s)",
    "string_too_long": "give at most {max_length} character(s)",
    "too_short": "give at least {min_length} item(s)",
    "too_long": "give at most {max_length} item(s)",
    "invalid_key": "give a field name that is text",
    "greater_than": "give more than {gt}",
    "greater_than_equal": "give at least {ge}",
    "less_than": "give less than {lt}",
    "less_than_equal": "give at most {le}",
}
_TEXTS_OF_KIND = {
    "bool": "give true or false",
    "string": "give text",
    "bytes": "give text",
    "path": "give a path",
    "json": "give JSON",
    "uuid": "give a UUID such as 5f0c6a52-3a55-4f0e-9a44-0d3f4f5f3c1e",
    "url": "give a URL",
    "datetime": "give a date and time such as 2025-01-31T12:00:00Z",
    "date": "give a date such as 2025-01-31",
    "timezone": "give a date and time such as 2025-01-31T12:00:00Z",
    "time_delta": "give a duration such as 00:05:00",
    "time": "give a time such as 12:00:00",
}
_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
_LISTS = ("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type")
_MAPPINGS = ("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type")


def _reason(error: Mapping[str, Any], node: Schema) -> str:
    kind: str = error["type"]
    context: Mapping[str, Any] = error.get("ctx") or {}
    if kind in ("literal_error", "enum"):
        return _choice(node.get("enum") or str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", "))
    if kind == "union_tag_invalid":
        return f"give {context['discriminator']} as {context['expected_tags']}".replace("'", "")
    if kind == "union_tag_not_found":
        return f"give {context['discriminator']}".replace("'", "")
    if kind == "string_pattern_mismatch":
        return _pattern(str(context["pattern"]), node)
    if kind in _LISTS:
        return f"give a list, for example {_example(node) or '[a, b]'}"
    if kind in _MAPPINGS:
        example = _example(node)
        return f"give a mapping of fields, for example {example}" if example else "give a mapping of names to values"
    if kind.startswith(("int_", "float_", "decimal_")) or (kind in _BOUNDS and _bounds(node)):
        is_whole = node["type"] == "integer" if "type" in node else kind.startswith("int_")
        return f"give a {'whole ' if is_whole else ''}number{_bounds(node)}"
    if kind in _TEXTS:
        return _TEXTS[kind].format_map(context)
    if text := next((text for prefix, text in _TEXTS_OF_KIND.items() if kind.startswith(f"{prefix}_")), None):
        return text
    if _has_custom_message(kind):
        # pydantic adds a prefix
        return _uncapitalize(str(error["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, "))
    description = _uncapitalize(str(node.get("description", "")))
    return f"this value is not valid{description and f'; {description}'}"


def _has_custom_message(kind: str) -> bool:
    """Types that pydantic does not know come from a PydanticCustomError."""
    from pydantic_core.core_schema import ErrorType

    return kind in ("value_error", "assertion_error") or kind not in get_args(ErrorType)


def _uncapitalize(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}".removesuffix(".")


def _choice(values: Sequence[object]) -> str:
    names = ", ".join(map(str, values))
    return f"give one of {names}" if len(values) > 1 else f"give {names}"


def _bounds(node: Schema) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    limits = {
        "minimum": "of at least",
        "exclusiveMinimum": "above",
        "maximum": "of at most",
        "exclusiveMaximum": "below",
    }
    words = [f"{words} {node[name]}" for name, words in limits.items() if name in node]
    return f" {' and '.join(words)}" if words else ""


def _example(node: Schema) -> str | None:
    """A value of the right shape, as YAML writes it on one line."""
    if examples := node.get("examples"):
        return str(examples[0]).replace("'", "")
    if node.get("properties"):
        name = next(iter(node.get("required") or node["properties"]))
        return f"{{{name}: …}}"
    if "items" not in node:
        return None
    items: Schema = node["items"]
    if "$ref" in items or "properties" in items:
        return "[{…}]"
    if "pattern" in items and re.search(items["pattern"], "id"):
        return "[id]"
    return {"integer": "[1, 2]", "number": "[1, 2]"}.get(items.get("type", ""), "[a, b]")


def _pattern(pattern: str, node: Schema) -> str:
    """A pattern in words where it is a choice or a name, otherwise the description of the field."""
    if choice := re.fullmatch(r"\^\(([\w|-]+)\)\$", pattern):
        return _choice(choice[1].split("|"))
    if letters := re.fullmatch(r"\^\[([^]^]+)\][*+]\$", pattern):
        return f"use only {_letters(letters[1], 'and')}"
    names = [re.fullmatch(r"\[([^]^]+)\]\[([^]^]+)\]\{0,(\d+)\}", part) for part in pattern[1:-1].split(r"\.")]
    if first := names[0] if all(names) else None:
        each, start = ("", "start") if len(names) == 1 else (" each", f"give {len(names)} names joined by a dot; start")
        return (
            f"{start}{each} with {_letters(first[1], 'or')}, then use only {_letters(first[2], 'and')};"
            f" at most {int(first[3]) + 1} characters{each}"
        )
    description = _uncapitalize(str(node.get("description", "")))
    return f"this text has the wrong form; {description or f'the pattern is {pattern}'}"


def _letters(characters: str, last: str) -> str:
    """`a-z, 0-9 and _` of a-z0-9_."""
    *first, final = re.findall(r".-.|.", characters)
    return f"{', '.join(first)} {last} {final}" if first else final
