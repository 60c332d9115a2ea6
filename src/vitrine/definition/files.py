"""Pipelines as YAML files: one file per pipeline, with the same fields as the API."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID

import yaml

from vitrine.definition import connectors
from vitrine.definition.model import NAME, Definition
from vitrine.definition.yaml import (
    FILE_SUFFIX,
    Document,
    FileRefused,
    Variables,
    parse,
    parse_text,
    place,
    place_at,
    read_text,
)
from vitrine.errors import ConfigError

SCHEMA_FILE = "pipeline.schema.json"


def schema_text() -> str:
    return json.dumps(_schema(), indent=1, ensure_ascii=False) + "\n"


def _schema() -> dict[str, Any]:
    """The schema of a definition with what only a file may contain: the id, and names of other files."""
    schema = Definition.model_json_schema()
    definitions, properties = schema["$defs"], schema["properties"]
    # editors know this draft best, and the schema uses nothing newer
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "A Vitrine pipeline"} | {
        name: value for name, value in schema.items() if name != "title"
    }
    properties["id"] = {"type": "string", "format": "uuid", "description": "The id that a new pipeline gets."}
    properties[f"source_query{FILE_SUFFIX}"] = _file_of("source_query", "The query")
    step = definitions["Step"]["properties"]
    step[f"body{FILE_SUFFIX}"] = _file_of("body", "The body of an SQL step")
    options = definitions["Options"]["properties"]
    named = {"type": "string", "description": "Name of a .yaml or .json file beside this one."}
    for name, option in list(options.items()):
        if option.pop("file", False):
            options[name] = {"anyOf": [option, named]}
    return schema


def _file_of(field: str, what: str) -> dict[str, Any]:
    return {
        "type": "string",
        "pattern": r"\.sql$",
        "description": f"{what} in a .sql file beside this one, instead of {field}.",
        "examples": ["top_genres.sql"],
    }


Content = TypeVar("Content")


@dataclass(frozen=True)
class Reading:
    """What a folder contains; every mistake begins with its place."""

    documents: tuple[Document, ...]
    mistakes: tuple[str, ...]


def read_folder(folder: Path, variables: Variables | None = None) -> list[Document]:
    """Every *.yaml and *.yml file of a folder, sorted by name; or one file. ConfigError lists every mistake."""
    reading = read(folder, variables)
    if reading.mistakes:
        raise FileRefused(reading.mistakes)
    return list(reading.documents)


def read(folder: Path, variables: Variables | None = None) -> Reading:
    """The same, with the files that can be read although others cannot."""
    if not folder.exists():
        raise ConfigError(f"there is no file or folder '{folder}'", code="NO_FILE")
    files = [folder] if not folder.is_dir() else sorted(p for p in folder.iterdir() if p.suffix in (".yaml", ".yml"))
    if not files:
        raise ConfigError(f"folder '{folder}' has no .yaml file", code="NO_FILE")
    documents: list[tuple[Path, Document]] = []
    mistakes: list[tuple[Path, str]] = []
    parts: set[Path] = set()  # files that are the value of a field, and no pipelines
    for file in files:
        try:
            found = _Parts(file, parse_text(file.name, read_text(file), variables), variables)
        except FileRefused as exc:
            mistakes += [(file, reason) for reason in exc.reasons]
            continue
        parts |= found.files
        mistakes += [(file, reason) for reason in found.mistakes]
        if not found.mistakes:
            documents.append((file, found.document))
    return Reading(
        tuple(document for file, document in documents if file.resolve() not in parts),
        tuple(reason for file, reason in mistakes if file.resolve() not in parts),
    )


# -- values in files of their own -------------------------------------------------------------------------------------


class _Parts:
    """A document with the contents of the files that it names."""

    def __init__(self, file: Path, document: Document, variables: Variables | None) -> None:
        self.files: set[Path] = set()
        self.mistakes: list[str] = []
        self._folder = file.parent.resolve()
        self._written = document
        self._variables = variables
        fields = self._with_query(document.fields, "source_query")
        if isinstance(tasks := fields.get("tasks"), list):
            steps = enumerate(cast(list[Any], tasks))
            fields["tasks"] = [
                self._with_query(cast(dict[str, Any], step), "body", "tasks", number)
                if isinstance(step, dict)
                else step
                for number, step in steps
            ]
        self.document = replace(document, fields=self._with_options(fields))

    def _with_query(self, fields: Mapping[str, Any], name: str, *around: int | str) -> dict[str, Any]:
        """`source_query_file: a.sql` becomes `source_query` with the content of the file."""
        given = f"{name}{FILE_SUFFIX}"
        kept = {field: value for field, value in fields.items() if field != given}
        if given not in fields:
            return kept
        if name in fields:
            self.mistakes.append(
                f"{self._written.place(*around, given)}: {given}: remove it, or {name}; the query is in one of them"
            )
            return kept
        part = self._find(fields[given], (*around, name), given, (".sql",), "correct the name")
        return kept if part is None else {**kept, name: self._attempt(lambda: _read_sql(part, self._variables))}

    def _with_options(self, fields: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(fields.get("options"), dict):
            return fields
        options = cast(dict[str, Any], fields["options"])
        source_type = fields.get("source_type", Definition.model_fields["source_type"].default)
        contents: dict[str, Any] = {}
        for name in connectors.file_options(str(source_type), _target_of(fields)):
            if not isinstance(options.get(name), str):
                continue
            remedy = "correct the name, or write the mapping itself"
            part = self._find(options[name], ("options", name), f"options.{name}", (".yaml", ".yml", ".json"), remedy)
            if part is not None:
                contents[name] = self._attempt(lambda part=part: self._read_mapping(part))
        return {**fields, "options": options | contents}

    def _find(
        self, name: object, location: tuple[int | str, ...], field: str, suffixes: tuple[str, ...], remedy: str
    ) -> Path | None:
        """The file beside the document; None after a mistake."""
        where = self._written.place(*location)
        kinds = " or ".join(suffix for suffix in suffixes if suffix != ".yml")
        part = (self._folder / name).resolve() if isinstance(name, str) and "\0" not in name else self._folder
        if not part.is_relative_to(self._folder):
            self.mistakes.append(
                f"{where}: {field} names '{name}', which is outside the folder of this file; move it there"
            )
        elif part.suffix not in suffixes or not part.is_file():
            self.mistakes.append(
                f"{where}: {field} names '{name}', but there is no such {kinds} file beside it; {remedy}"
            )
        else:
            self.files.add(part)
            return part
        return None

    def _attempt(self, read: Callable[[], Content]) -> Content | None:
        try:
            return read()
        except FileRefused as exc:
            self.mistakes += exc.reasons
            return None

    def _read_mapping(self, part: Path) -> dict[str, Any]:
        text = read_text(part)
        if part.suffix == ".json":
            content = _parse_json(part.name, text, self._variables)
        else:
            content = parse(part.name, text, self._variables).content
        names = f"{part.name}, which {self._written.origin} names"
        if not isinstance(content, dict):
            raise FileRefused([f"{names}: the file is not a mapping of fields"])
        if {"name", "target_table"} <= content.keys():
            self.files.discard(part)
            raise FileRefused([f"{names}: the file is a pipeline itself"])
        return cast(dict[str, Any], content)


def _read_sql(part: Path, variables: Variables | None) -> str:
    text = read_text(part)
    return str(_replaced(part.name, text, text, variables)).strip()


def _parse_json(name: str, text: str, variables: Variables | None) -> object:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for key, value in pairs:
            if key in content:
                _refuse_with_place(name, text)
                raise FileRefused([f"{name}: '{key}' is given twice in one object; remove one of them"])
            content[key] = value
        return content

    try:
        return _replaced(name, text, json.loads(text, object_pairs_hook=unique), variables)
    except json.JSONDecodeError as exc:
        raise FileRefused([f"{place(name, exc.lineno, exc.colno)}: {exc.msg}"]) from exc
    except ValueError as exc:
        raise FileRefused([f"{name}: a number in the file has too many digits"]) from exc
    except RecursionError as exc:
        _refuse_with_place(name, text)
        raise FileRefused([f"{name}: the values are nested too deeply"]) from exc


def _refuse_with_place(name: str, text: str) -> None:
    """The parser of YAML knows the place of what it refuses; JSON may contain tabs, which YAML does not allow there."""
    parse(name, text.replace("\t", " "))


def _replaced(name: str, text: str, content: object, variables: Variables | None) -> object:
    """The content of a file with its variables replaced; FileRefused names the place of every unknown one."""
    if variables is None:
        return content
    unknown: dict[str, None] = {}

    def replaced(value: object) -> object:
        if isinstance(value, str):
            unknown.update(dict.fromkeys(variables.unknown(value)))
            return variables.replace(value)
        if isinstance(value, dict):
            return {key: replaced(one) for key, one in cast(dict[str, object], value).items()}
        return [replaced(one) for one in cast(list[object], value)] if isinstance(value, list) else value

    result = replaced(content)
    if unknown:
        raise FileRefused(
            [f"{place_at(name, text, text.find(f'${{{one}}}'))}: {variables.refusal(one)}" for one in unknown]
        )
    return result


def _target_of(fields: Mapping[str, Any]) -> str:
    """The target as far as it is known before the fields are validated: the last step may override the pipeline's."""
    tasks = fields.get("tasks")
    given = cast(list[Any], tasks) if isinstance(tasks, list) else []
    steps = [cast(dict[str, Any], step) for step in given if isinstance(step, dict)]
    last = max(
        (step for step in steps if isinstance(step.get("order_index"), int)), key=_order_of, default=dict[str, Any]()
    )
    return str(last.get("target_table") or fields.get("target_table", ""))


def _order_of(step: Mapping[str, Any]) -> int:
    return step["order_index"]


SCHEMA_LINE = f"# yaml-language-server: $schema={SCHEMA_FILE}\n"
"""Editors read the schema from the same folder."""


def write_folder(folder: Path, definitions: Iterable[tuple[UUID, Definition]]) -> list[Path]:
    """Write one file per pipeline, without fields that have their default, and the schema for editors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SCHEMA_FILE).write_text(schema_text(), "utf-8")
    written: list[Path] = []
    for pipeline_id, definition in definitions:
        file = folder / f"{definition.name}.yaml"
        file.write_text(SCHEMA_LINE + format_text(definition, id=str(pipeline_id)), "utf-8")
        written.append(file)
    return written


def format_text(definition: Definition, **first: str) -> str:
    """The definition as YAML; `first` are fields that precede it."""
    # the type follows from the steps
    fields = first | definition.model_dump(mode="json", exclude_defaults=True, exclude={"type", "options"})
    if options := definition.options.model_dump(mode="json", exclude_defaults=True):
        fields["options"] = options
    return dump(fields)


def dump(content: Mapping[str, object] | Sequence[object]) -> str:
    """Fields as YAML, in their order; or a list."""
    plain = dict(content) if isinstance(content, Mapping) else list(content)
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as block scalars, so that a query keeps its line breaks."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # a block scalar turns each of these characters into a line feed
    style = '"' if any(character in text for character in "\r\x85\u2028\u2029") else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)  # pyright: ignore[reportUnknownMemberType]


_Dumper.add_representer(str, _represent_text)


LINE_LENGTH = 88


class Starting:
    """What the file says about one table."""

    def __init__(
        self,
        schema: str,
        table: str,
        columns: list[str],
        key: list[str],
        cursor: str | None,
        *,
        source: str = "default",
        target_schema: str = "analytics",
    ) -> None:
        self.name = _pipeline_name(table)
        self._from = f"{quoted(schema)}.{quoted(table)}"
        self._columns = columns
        self._key = key
        self.cursor = cursor if len(key) == 1 else None  # without a key of one column, nothing breaks ties
        self._source = source
        self._target = f"{target_schema}.{self.name}"

    def text(self) -> str:
        fields: dict[str, object] = {
            "name": self.name,
            "description": f"Rows of {self._from}",
            **({"source": self._source} if self._source != "default" else {}),
            "source_query": self._query(),
            "target_table": self._target,
        }
        if self.cursor is not None:
            fields |= {"mode": "incremental", "incremental_key": self.cursor, "incremental_id_key": self._key[0]}
        if self._key:
            fields["key_columns"] = list(self._key)
        return f"{SCHEMA_LINE}{dump(fields)}{self._notes()}"

    def _query(self) -> str:
        lines: list[str] = []
        line = "SELECT"
        for number, column in enumerate(self._columns):
            part = f" {quoted(column)}" + ("," if number < len(self._columns) - 1 else "")
            if len(line) + len(part) > LINE_LENGTH:
                lines.append(line)
                line = "      "
            line += part
        return "\n".join([*lines, line, f"  FROM {self._from}"])

    def _notes(self) -> str:
        notes = ["# schedule_interval: 5m   # without it, the pipeline runs by request only"]
        if not self._key:
            notes.append("# The table has no primary key: give the columns that identify a row\nkey_columns: []")
        elif self.cursor is None:
            notes.append(
                "# mode: incremental reads only changed rows; it needs incremental_key, a column that grows with"
            )
            notes.append("# every change, and a key of one column. Without it, every run reads all rows")
        else:
            notes.append("# Rows deleted at the source stay in the mart until `vitrine run NAME --full`")
        return "\n".join(notes) + "\n"


_RESERVED = (
    "all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation"
    " column concurrently constraint create cross current_catalog current_date current_role current_schema current_time"
    " current_timestamp current_user default deferrable desc distinct do else end except false fetch for foreign freeze"
    " from full grant group having ilike in initially inner intersect into is isnull join lateral leading left like"
    " limit localtime localtimestamp natural not notnull null offset on only or order outer overlaps placing primary"
    " references returning right select session_user similar some symmetric system_user table tablesample then to"
    " trailing true union unique user using variadic verbose when where window with"
)
_KEYWORDS = frozenset(_RESERVED.split())


def quoted(name: str) -> str:
    """The name as SQL writes it, in quotes only where they are needed."""
    if re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in _KEYWORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


def _pipeline_name(table: str) -> str:
    """A valid name for a pipeline and its target that resembles the name of the table."""
    name = re.sub(r"[^a-z0-9_]+", "_", table.lower()).strip("_")
    name = name if re.match(r"[a-z]", name) else f"t_{name}"
    name = name[:60]
    return name if re.fullmatch(NAME, name) else "table_copy"
