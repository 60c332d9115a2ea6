"""The reference page of connectors, out of their own declarations: `python -m vitrine_testing.reference`."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, cast

from pydantic import AliasChoices, BaseModel

from vitrine.definition import connectors
from vitrine.definition.connectors import Connector, SinkSpec, SourceSpec
from vitrine.definition.model import PYTHON_READER

HEAD = """\
# Connector reference

Generated from the declarations of the installed connectors by `python -m vitrine_testing.reference`; a test compares
it. How to write a connector: [connectors.md](connectors.md). Options that every pipeline has:
[pipelines.md](pipelines.md).
"""


def reference(connectors: Iterable[Connector]) -> str:
    """The page, in Markdown."""
    return "\n".join([HEAD, *(part for connector in connectors for part in _connector(connector))])


def _connector(connector: Connector) -> Iterator[str]:
    yield f"## {connector.name}\n"
    if connector.extra:
        yield f"Needs the extra `{connector.extra}`.\n"
    names = {name: _variables(connector, name) for name in connector.settings.model_fields}
    yield from _table("setting", connector.settings, names)
    if connector.source:
        yield from _side(connector, connector.source, "source", _named(connector))
    if connector.sink:
        yield from _side(connector, connector.sink, "sink", f"A target is {_grammar(connector.sink)}.")


def _side(connector: Connector, spec: SourceSpec | SinkSpec, role: str, usage: str) -> Iterator[str]:
    implementation = connectors.load_class(connector, spec.factory)
    summary = (implementation.__doc__ or "").partition("\n")[0]
    lanes = ", ".join(f"`{lane}`" for lane in getattr(implementation, "lanes", ()))
    yield f"### {connector.name} as a {role}\n"
    yield f"{summary} {usage}{f' Lanes, the preferred one first: {lanes}.' if lanes else ''}\n"
    yield from _table("option", spec.options, {name: f"`{name}`" for name in spec.options.model_fields})


def _named(connector: Connector) -> str:
    if connector.name == PYTHON_READER:
        return "Used where the first step of a pipeline names a registered reader."
    return f"Used where `source_type` is `{connector.name}`."


def _grammar(sink: SinkSpec) -> str:
    return sink.grammar.replace(sink.example, f"`{sink.example}`", 1)


def _variables(connector: Connector, name: str) -> str:
    """The environment variables that a setting is read from; the first one that is set counts."""
    alias = connector.settings.model_fields[name].validation_alias
    own = f"VITRINE_{connector.name}_{name}".upper()
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias or own]
    return ", ".join(f"`{choice}`" for choice in choices if str(choice).isupper())


def _table(head: str, model: type[BaseModel], names: dict[str, str]) -> Iterator[str]:
    if not names:
        return
    defaults = model.model_construct().model_dump(mode="json")
    rows = [
        f"| {shown} | {_default(defaults[name]) if name in defaults else 'required'}"
        f" | {model.model_fields[name].description or ''} |"
        for name, shown in names.items()
    ]
    yield "\n".join([f"| {head} | default | meaning |", "|---|---|---|", *rows, ""])


def _default(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return f"`{str(value).lower()}`"
        case list():
            return ", ".join(f"`{one}`" for one in cast("list[Any]", value))
        case _:
            return f"`{value}`"


if __name__ == "__main__":
    sys.stdout.write(reference(connectors.installed().values()))
