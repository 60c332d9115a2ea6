"""What a person types into the form or as YAML, read as a definition with its problems and suggestions."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, cast

from pydantic import ValidationError

from vitrine import input_errors
from vitrine.console import texts
from vitrine.definition.files import dump, format_text
from vitrine.definition.model import NAME, Definition
from vitrine.definition.yaml import Document, FileRefused, parse, parse_text
from vitrine.errors import DefinitionRefused, Place, VitrineError
from vitrine.input_errors import InputError, Schema
from vitrine.operations.bodies.overview import TableBody
from vitrine.operations.bodies.pipelines import FindingBody, PlaceBody

MAX_SUGGESTIONS = 4


@dataclass(frozen=True)
class KeySuggestion:
    columns: tuple[str, ...]
    table: str


@dataclass(frozen=True)
class CursorSuggestion:
    column: str
    id_column: str  # breaks ties
    table: str
    reasons: tuple[str, ...]


def tables_of(query: str, tables: Sequence[TableBody]) -> list[TableBody]:
    """The tables that the text names; a suggestion need not be exact, so that unfinished queries have some, too."""
    text = re.sub(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'", " ", query, flags=re.DOTALL).replace('"', "")
    named = {(found[1].lower(), found[2].lower()) for found in re.finditer(r"\b(\w+)\s*\.\s*(\w+)\b", text)}
    return [one for one in tables if (one.schema_name.lower(), one.name.lower()) in named]


def suggest_keys(query: str, tables: Sequence[TableBody], produced: Collection[str] = ()) -> list[KeySuggestion]:
    """Keys of the tables that the query names and whose columns it returns."""
    found: dict[tuple[str, ...], KeySuggestion] = {}
    for one in tables_of(query, tables):
        if one.key and all(_returns(query, column, produced) for column in one.key):
            found.setdefault(tuple(one.key), KeySuggestion(tuple(one.key), one.full_name))
    return list(found.values())[:MAX_SUGGESTIONS]


def suggest_cursors(query: str, tables: Sequence[TableBody], produced: Collection[str] = ()) -> list[CursorSuggestion]:
    """Columns that grow with every change, of tables with a key of one column."""
    found: dict[tuple[str, str], CursorSuggestion] = {}
    for one in tables_of(query, tables):
        if len(one.key) != 1 or not _returns(query, one.key[0], produced):
            continue
        for cursor in one.cursors:
            if cursor.is_modification and _returns(query, cursor.column, produced):
                made = CursorSuggestion(cursor.column, one.key[0], one.full_name, tuple(cursor.reasons))
                found.setdefault((made.column, made.id_column), made)
    return list(found.values())[:MAX_SUGGESTIONS]


def _returns(query: str, column: str, produced: Collection[str]) -> bool:
    if produced:
        return column in produced
    return "*" in query or re.search(rf"\b{re.escape(column)}\b", query) is not None


Level = Literal["error", "missing", "warning", "note"]
Form = Mapping[str, str | bool]

UNNAMED = "unnamed_pipeline"
"""A query is checked before its pipeline has a name; nothing is stored under this one."""

TARGET_SCHEMA = "analytics"

MAX_DIGITS = 10

OPTIONAL = ("python_task", "incremental_key", "incremental_id_key", "schedule_interval")
LISTS = ("tags", "key_columns", "after")
YAML_TEXTS: Mapping[str, Any] = {"options": {}, "checks": []}
"""Fields that the form has as YAML, and what an empty text means."""

_PLACE = re.compile(r"^(?:yaml|source query), line (\d+), column (\d+): (.*)$", re.DOTALL)


@dataclass(frozen=True)
class Problem:
    """One reason against a definition, or a remark about it; line and column count from 1, in the shown text."""

    text: str
    level: Level = "error"
    line: int | None = None
    column: int | None = None


@dataclass(frozen=True)
class Reading:
    """A definition to check, and what is wrong with the input; one with problems cannot be stored."""

    definition: Definition | None
    problems: tuple[Problem, ...] = ()

    @property
    def storable(self) -> bool:
        return self.definition is not None and not self.problems


# -- the form ---------------------------------------------------------------------------------------------------------


EMPTY_FORM: Form = {
    "name": "",
    "description": "",
    "owner": "",
    "tags": "",
    "source": "default",
    "source_query": "",
    "python_task": "",
    "target_table": "",
    "mode": "full",
    "incremental_key": "",
    "incremental_id_key": "",
    "key_columns": "",
    "batch_size": "auto",
    "enabled": True,
    "schedule_interval": "",
    "after": "",
    "options": "",
    "checks": "",
}


def fits_form(definition: Definition, base: Definition | None = None) -> bool:
    """Whether the form loses nothing of it: fields that it does not show are those of `base`.

    One with a task plan, or without a query, is edited as YAML.
    """
    is_simple = not definition.tasks and definition.source_query is not None
    return is_simple and _hidden(definition) == (_hidden(base) if base else _hidden(_DEFAULTS))


_DEFAULTS = Definition(name=UNNAMED, target_table="")


def _hidden(definition: Definition) -> dict[str, Any]:
    """The fields without an input, such as source_type."""
    return definition.model_dump(mode="json", exclude={"type", "tasks", *EMPTY_FORM})


def form_of(definition: Definition) -> dict[str, str | bool]:
    fields = definition.model_dump(mode="json", include=set(EMPTY_FORM) - set(YAML_TEXTS))
    options = definition.options.model_dump(mode="json", exclude_defaults=True)
    checks = [check.model_dump(mode="json", exclude_defaults=True) for check in definition.checks]
    form: dict[str, str | bool] = {
        name: ", ".join(cast(list[str], value)) if name in LISTS else "" if value is None else value
        for name, value in fields.items()
    }
    return form | {
        "batch_size": str(definition.batch_size),
        "options": dump(options) if options else "",
        "checks": dump(checks) if checks else "",
    }


def fields_of(form: Form, base: Definition | None = None) -> dict[str, Any]:
    """The fields of a definition; `base` has those that the form does not show. FileRefused: a text is no YAML."""
    fields = _hidden(base) if base else {}
    for name, value in form.items():
        if isinstance(value, bool):
            fields[name] = value
        elif name in LISTS:
            fields[name] = [part.strip() for part in value.split(",") if part.strip()]
        elif name not in (*YAML_TEXTS, "source_query", "description"):
            fields[name] = value.strip()
        else:
            fields[name] = value
    for name in OPTIONAL:
        fields[name] = fields[name] or None
    fields["target_table"] = fields["target_table"] or f"{TARGET_SCHEMA}.{fields['name']}"
    size = fields["batch_size"].replace(" ", "").replace("_", "")
    fields["batch_size"] = int(size) if size.isascii() and size.isdigit() and len(size) < MAX_DIGITS else size or "auto"
    refused: list[str] = []
    for name, empty in YAML_TEXTS.items():
        try:
            content = parse(name, str(form[name])).content
        except FileRefused as exc:
            refused += exc.reasons
        else:
            fields[name] = empty if content is None else content
    if refused:
        raise FileRefused(refused)
    return fields


def read_form(form: Form, base: Definition | None = None) -> Reading:
    try:
        fields = fields_of(form, base)
    except FileRefused as exc:
        return Reading(None, tuple(Problem(_in_text(reason)) for reason in exc.reasons))
    problems: list[Problem] = []
    if re.fullmatch(NAME, fields["name"]) is None:
        problems.append(Problem(texts.NAME_FORM) if fields["name"] else Problem(texts.NAME_NEEDED, "missing"))
        if not str(form["target_table"]).strip():
            fields["target_table"] = f"{TARGET_SCHEMA}.{UNNAMED}"
        fields["name"] = UNNAMED
    if not fields["source_query"].strip():
        return Reading(None, (*problems, Problem(texts.QUERY_NEEDED, "missing")))
    try:
        return Reading(Definition.model_validate(fields), tuple(problems))
    except ValidationError as exc:
        wrong = input_errors.explain(exc.errors(), schema=_schema())
        return Reading(None, (*problems, *(_wrong_field(one, form) for one in wrong)))


def _wrong_field(wrong: InputError, form: Form) -> Problem:
    """The sentence; within a text of YAML, after its place."""
    name, *inside = wrong.location or ("",)
    if name not in YAML_TEXTS or not inside:
        return Problem(wrong.sentence)
    place = parse(str(name), str(form[str(name)])).locate(tuple(inside))
    return Problem(_in_text(f"{place}: {wrong.sentence}"))


def _in_text(reason: str) -> str:
    """`options, line 1, column 5: …`: a place in the text of a field, which is no file."""
    return reason.replace(", ", ": ", 1)


@lru_cache(maxsize=1)
def _schema() -> Schema:
    return input_errors.schema_of(Definition)


# -- YAML -------------------------------------------------------------------------------------------------------------


def yaml_of(definition: Definition) -> str:
    return format_text(definition)


def yaml_of_form(form: Form, base: Definition | None = None) -> str:
    """The form as YAML even while it is not valid, so that nothing typed is lost."""
    reading = read_form(form, base)
    if reading.definition is not None and reading.storable:
        return yaml_of(reading.definition)
    try:
        fields = fields_of(form, base)
    except FileRefused:
        empty_texts, typed = dict.fromkeys(YAML_TEXTS, ""), {name: str(form[name]) for name in YAML_TEXTS if form[name]}
        fields = fields_of({**form, **empty_texts}, base) | typed
    empty = fields_of(EMPTY_FORM)
    kept = {name: value for name, value in fields.items() if value != empty.get(name) and value not in (None, [], {})}
    return dump({"name": fields["name"]} | kept)


def read_yaml(text: str) -> Reading:
    try:
        document = parse_text("yaml", text)
    except FileRefused as exc:
        return Reading(None, tuple(_placed(reason) for reason in exc.reasons))
    document = Document(document.origin, {k: v for k, v in document.fields.items() if k != "id"}, document.locate)
    try:
        return Reading(document.definition)
    except ValidationError as exc:
        return Reading(None, tuple(_placed(reason) for reason in document.mistakes(exc)))


def _placed(reason: str) -> Problem:
    """A reason that begins with its place, as files name it."""
    found = _PLACE.match(reason)
    return Problem(found[3], line=int(found[1]), column=int(found[2])) if found else Problem(reason)


# -- what the server answers ------------------------------------------------------------------------------------------


def problems_of(error: VitrineError, shown: str, query: str) -> list[Problem]:
    """The reasons of a refusal, marked where they are in the shown text, which is the query or contains it."""
    reasons = [text for _, text in error.reasons] if isinstance(error, DefinitionRefused) else [str(error)]
    found = [_in_query(text, shown, query) for text in reasons]
    if error.place is not None and all(one.line is None for one in found):
        found[0] = Problem(found[0].text, "error", *_find(error.place, shown))
    return found


def _in_query(text: str, shown: str, query: str) -> Problem:
    """An error about the query begins with its place, which is shown apart from the text."""
    named, lines = _PLACE.match(text), query.split("\n")
    if named is None or int(named[1]) > len(lines):
        return Problem(text)
    line, column = _find(Place(int(named[1]), int(named[2]), lines[int(named[1]) - 1]), shown)
    return Problem(named[3] if line else text, "error", line, column)


def problems_of_findings(findings: Iterable[FindingBody], shown: str) -> list[Problem]:
    return [
        Problem(one.text, "note" if one.note else "warning", *_find(one.place and one.place.place, shown))
        for one in findings
    ]


def _find(place: Place | PlaceBody | None, shown: str) -> tuple[int | None, int | None]:
    """The place of the query in the text that is shown: the same, or further down and indented if that is YAML."""
    if place is None:
        return None, None
    lines = shown.split("\n")
    if place.line <= len(lines) and lines[place.line - 1].rstrip("\r") == place.text:
        return place.line, place.column
    # a query is stored without the blanks around it, so that even in its own editor it may begin further down
    words = place.text.strip()
    for number, line in enumerate(lines):
        if number + 1 >= place.line and words and line.strip().endswith(words):
            return number + 1, place.column + line.rindex(words) - _indent(place.text)
    return None, None


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


# -- saving -----------------------------------------------------------------------------------------------------------


def changes(old: Definition, new: Definition) -> dict[str, Any]:
    """The body of a PATCH that makes the old definition the new one; an option that is removed gets its default."""
    before, after = (one.model_dump(mode="json", exclude={"type", "options"}) for one in (old, new))
    fields = {name: value for name, value in after.items() if value != before[name]}
    set_before, set_after = (one.options.model_dump(mode="json", exclude_defaults=True) for one in (old, new))
    defaults = new.options.model_dump(mode="json")
    options = {name: value for name, value in set_after.items() if set_before.get(name) != value}
    options |= {name: defaults[name] for name in set_before if name not in set_after and name in defaults}
    return fields | ({"options": options} if options else {})
