"""Stored pipelines as YAML files that can be read back."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from uuid import UUID

import yaml

from vitrine.model import Definition
from vitrine.pipeline_files.schema import SCHEMA_FILE, schema_text

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
