"""Pipelines as YAML files: one file per pipeline, with the same fields as the API."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from vitrine import input_errors
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
    return [(file.name, _read_file(file)) for file in files]


def _read_file(file: Path) -> Mapping[str, Any]:
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{file.name}: the file is not UTF-8 text; save it as UTF-8", code="YAML") from exc
    return parse_text(file.name, text)


def parse_text(name: str, text: str) -> Mapping[str, Any]:
    """The fields of one document; ConfigError names the line that is not YAML."""
    try:
        document = yaml.safe_load(text)
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 0
        raise ConfigError(f"{name}, line {line}: {exc.problem}", code="YAML") from exc
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        raise ConfigError(f"{name}, line {line}: {exc.reason}", code="YAML") from exc
    if not isinstance(document, dict):
        raise ConfigError(f"{name}: a pipeline is a mapping of fields, such as name: top_genres", code="YAML")
    return document  # pyright: ignore[reportUnknownVariableType]


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
