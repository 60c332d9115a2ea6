"""infra/docker-compose.yml as data: services, their environment, and the order in which they start."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "infra" / "docker-compose.yml"
OWN_IMAGE = "vitrine:local"
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


@dataclass(frozen=True)
class Service:
    name: str
    fields: Mapping[str, Any]

    @property
    def is_ours(self) -> bool:
        """Whether it runs our image, and not that of a server."""
        return self.fields["image"] == OWN_IMAGE

    @property
    def is_one_shot(self) -> bool:
        return "restart" not in self.fields

    @property
    def needs(self) -> Mapping[str, Mapping[str, str]]:
        """Services that must be healthy or complete before."""
        return self.fields.get("depends_on", {})

    @property
    def command(self) -> list[str]:
        """The command in the container."""
        entrypoint = self.fields.get("entrypoint", ["vitrine"] if self.is_ours else [])
        return [*entrypoint, *self.fields.get("command", [])]

    @property
    def mounts(self) -> dict[str, Path]:
        """What is mounted from the repository, by its path in the container."""
        split = (one.split(":") for one in self.fields.get("volumes", []))
        return {parts[1]: (FILE.parent / parts[0]).resolve() for parts in split if parts[0].startswith(".")}

    def environment(self, values: Mapping[str, str]) -> dict[str, str]:
        return {name: interpolate(str(text), values) for name, text in self.fields.get("environment", {}).items()}


def document() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text("utf-8"))


def services() -> dict[str, Service]:
    """All services, each after those that it needs."""
    found = {name: Service(name, fields) for name, fields in document()["services"].items()}
    order = TopologicalSorter({name: set(one.needs) for name, one in found.items()})
    return {name: found[name] for name in order.static_order()}


def interpolate(text: str, values: Mapping[str, str]) -> str:
    """As `docker compose` does: `${NAME:?…}` must have a value, `${NAME:-…}` has a default, `$$` is a dollar sign."""

    def value(found: re.Match[str]) -> str:
        name, kind, other = found.groups()
        return values.get(name) or (other if kind == "-" else values[name])

    return VARIABLE.sub(value, text).replace("$$", "$")
