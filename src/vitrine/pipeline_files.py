"""Pipelines as YAML files: one file per pipeline, with the same fields as the API."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import ValidationError

from vitrine import input_errors, plugins
from vitrine.errors import ConfigError
from vitrine.model import Definition, Pipeline

Document = tuple[str, Mapping[str, Any]]
"""The name of the file, and its fields."""


def read_folder(folder: Path) -> list[Document]:
    """Every *.yaml and *.yml file of a folder, sorted by name; or one file."""
    if not folder.exists():
        raise ConfigError(f"there is no file or folder '{folder}'", code="NO_FILE")
    files = [folder] if folder.is_file() else sorted(p for p in folder.iterdir() if p.suffix in (".yaml", ".yml"))
    if not files:
        raise ConfigError(f"folder '{folder}' has no .yaml file", code="NO_FILE")
    documents: list[tuple[Path, Mapping[str, Any]]] = []
    refused: list[tuple[Path, ConfigError]] = []
    parts: set[Path] = set()  # files that are the value of an option, and no pipelines
    for file in files:
        try:
            fields, named = _with_named_files(file, parse_text(file.name, _read_text(file)))
            parts |= named
            documents.append((file, fields))
        except ConfigError as exc:
            refused.append((file, exc))
    for file, exc in refused:
        if file.resolve() not in parts:
            raise exc
    return [(file.name, fields) for file, fields in documents if file.resolve() not in parts]


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{file.name}: the file is not UTF-8 text; save it as UTF-8", code="YAML") from exc


def parse_text(name: str, text: str) -> Mapping[str, Any]:
    """The fields of one document; ConfigError names the line that is not YAML."""
    document = _parse_yaml(name, text)
    if not isinstance(document, dict):
        raise ConfigError(f"{name}: a pipeline is a mapping of fields, such as name: top_genres", code="YAML")
    return cast(dict[str, Any], document)


def _parse_yaml(name: str, text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 0
        raise ConfigError(f"{name}, line {line}: {exc.problem}", code="YAML") from exc
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        raise ConfigError(f"{name}, line {line}: {exc.reason}", code="YAML") from exc


# -- options in files of their own ------------------------------------------------------------------------------------


def _with_named_files(file: Path, fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], set[Path]]:
    """The fields with the content of each file that an option names, and these files."""
    options = fields.get("options")
    if not isinstance(options, dict):
        return fields, set()
    given = cast(dict[str, Any], options)
    source_type = fields.get("source_type", Definition.model_fields["source_type"].default)
    allowed = plugins.file_options(str(source_type), _target_of(fields))
    named = {name: _beside(file, name, given[name]) for name in allowed if isinstance(given.get(name), str)}
    contents = {name: _read_part(file, part) for name, part in named.items()}
    return ({**fields, "options": given | contents} if named else fields), set(named.values())


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


def _beside(file: Path, option: str, name: str) -> Path:
    folder = file.parent.resolve()
    part = (folder / name).resolve()
    if not part.is_relative_to(folder):
        raise ConfigError(
            f"{file.name}: options.{option} names '{name}', which is outside the folder of this file; move it there",
            code="NO_FILE",
        )
    if part.suffix not in (".yaml", ".yml", ".json") or not part.is_file():
        raise ConfigError(
            f"{file.name}: options.{option} names '{name}', but there is no such .yaml or .json file beside it; correct"
            " the name, or write the mapping itself",
            code="NO_FILE",
        )
    return part


def _read_part(file: Path, part: Path) -> dict[str, Any]:
    content = _parse_json(part) if part.suffix == ".json" else _parse_yaml(part.name, _read_text(part))
    if not isinstance(content, dict):
        raise ConfigError(f"{part.name}, which {file.name} names: the file is not a mapping of fields", code="YAML")
    if {"name", "target_table"} <= content.keys():
        raise ConfigError(f"{part.name}, which {file.name} names: the file is a pipeline itself", code="YAML")
    return cast(dict[str, Any], content)


def _parse_json(part: Path) -> object:
    try:
        return json.loads(_read_text(part))
    except json.JSONDecodeError as exc:
        raise ConfigError(f"{part.name}, line {exc.lineno}: {exc.msg}", code="YAML") from exc


# -- definitions ------------------------------------------------------------------------------------------------------


def definition_of(document: Document) -> Definition:
    """The definition in a document; ConfigError names the file, the field and the reason of every mistake."""
    origin, fields = document
    try:
        return Definition.model_validate({name: value for name, value in fields.items() if name != "id"})
    except ValidationError as exc:
        mistakes = input_errors.explain(exc.errors(), Definition)
        raise ConfigError("; ".join(f"{origin}: {one.sentence}" for one in mistakes), code="INVALID") from exc


def write_folder(folder: Path, pipelines: Iterable[Pipeline]) -> list[Path]:
    """Write one file per pipeline, without fields that have their default; `read_folder` reads them back."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for pipeline in pipelines:
        file = folder / f"{pipeline.name}.yaml"
        file.write_text(format_text(pipeline.definition, id=str(pipeline.id)), "utf-8")
        written.append(file)
    return written


def format_text(definition: Definition, **first: str) -> str:
    """The definition as YAML; `first` are fields that precede it."""
    # the type follows from the steps
    fields = first | definition.model_dump(mode="json", exclude_defaults=True, exclude={"type", "options"})
    if options := definition.options.model_dump(mode="json", exclude_defaults=True):
        fields["options"] = options
    return yaml.dump(fields, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as block scalars, so that a query keeps its line breaks."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # a block scalar turns each of these characters into a line feed
    style = '"' if any(character in text for character in "\r\x85\u2028\u2029") else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)  # pyright: ignore[reportUnknownMemberType]


_Dumper.add_representer(str, _represent_text)
