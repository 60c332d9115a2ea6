"""Variables of a stage, from a file of NAME=value lines."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vitrine.errors import ConfigError
from vitrine.pipeline_files.places import FileRefused, place
from vitrine.pipeline_files.text_files import read_text

# $$ comes first: it opens and closes a text in SQL and is never the begin of a variable
REFERENCE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")


@dataclass(frozen=True)
class Variables:
    """The values that replace `${name}`; they are used as they stand, so a value never refers to another."""

    origin: str
    values: Mapping[str, str]

    def replace(self, text: str) -> str:
        return REFERENCE.sub(lambda found: self.values[found[1]] if found[1] in self.values else found[0], text)

    def unknown(self, text: str) -> list[str]:
        """Names that the text refers to and the file does not have, in order."""
        found = (name for name in REFERENCE.findall(text) if name and name not in self.values)
        return list(dict.fromkeys(found))

    def refusal(self, name: str) -> str:
        return f"'{self.origin}' has no variable '{name}'; add it there, or correct the name"


def read_variables(file: Path) -> Variables:
    """Lines of NAME=value; empty lines and those that begin with # are ignored, quotes around a value are removed."""
    try:
        lines = read_text(file).splitlines()
    except FileRefused as exc:
        raise ConfigError(f"cannot read the variables: {exc.reasons[0]}", code="NO_FILE") from exc
    values: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = ASSIGNMENT.fullmatch(line.strip())
        if found is None:
            raise ConfigError(f"{place(file.name, number, 1)}: write NAME=value, or # and a comment", code="ENV_FILE")
        if found[1] in values:
            raise ConfigError(f"{place(file.name, number, 1)}: '{found[1]}' occurs twice; remove one", code="ENV_FILE")
        values[found[1]] = _unquote(found[2])
    return Variables(file.name, values)


def _unquote(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
