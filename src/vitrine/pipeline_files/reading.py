"""YAML files of a folder, with the files that their fields name."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from vitrine import plugins
from vitrine.documents import Document
from vitrine.errors import ConfigError
from vitrine.model import Definition
from vitrine.pipeline_files.places import FileRefused, place, place_at
from vitrine.pipeline_files.text_files import read_text
from vitrine.pipeline_files.variables import Variables
from vitrine.pipeline_files.yaml_text import FILE_SUFFIX, parse, parse_text

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
        for name in plugins.file_options(str(source_type), _target_of(fields)):
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
