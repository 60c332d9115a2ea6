"""Definitions as YAML text and as fields, with the place of each."""

import os
import re
import stat
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import ValidationError
from yaml.constructor import ConstructorError

from vitrine import input_errors
from vitrine.definition.model import Definition
from vitrine.errors import ConfigError, DefinitionRefused, VitrineError
from vitrine.input_errors import Location
from vitrine.text import printable

MAX_FILE_LENGTH = 300

_FIELD_OF_CODE = {
    "NAME_TAKEN": "name",
    "TARGET_TAKEN": "target_table",
    "ID_TAKEN": "id",
    "UNKNOWN_UPSTREAM": "after",
}


@dataclass(frozen=True)
class Document:
    """The fields of one file; `id` is optional among them."""

    origin: str
    fields: Mapping[str, Any]
    # file, line and column of a field, or of the nearest field around it; None: only the origin is known
    locate: Callable[[Location], str] | None = field(default=None, compare=False)

    @property
    def file(self) -> str:
        """The origin without folders of the machine that it was read on, and without control characters."""
        parts = self.origin.replace("\\", "/").split("/")
        is_absolute = parts[0] in ("", "~") or parts[0].endswith(":")
        return printable(parts[-1] if is_absolute else self.origin)[:MAX_FILE_LENGTH] or "document"

    def place(self, *location: int | str) -> str:
        return self.locate(location) if self.locate else self.origin

    @property
    def definition(self) -> Definition:
        """What the document defines; ValidationError if it is not valid."""
        return Definition.model_validate({name: value for name, value in self.fields.items() if name != "id"})

    def valid_definition(self) -> Definition:
        """What the document defines; ConfigError names place, field and reason of every mistake."""
        try:
            return self.definition
        except ValidationError as exc:
            raise ConfigError("\n".join(self.mistakes(exc)), code="INVALID") from exc

    def mistakes(self, refusal: ValidationError | VitrineError) -> list[str]:
        """The reasons of a refusal, each with its place."""
        if isinstance(refusal, ValidationError):
            wrong = input_errors.explain(refusal.errors(), Definition)
            return [f"{self.place(*one.location)}: {one.sentence}" for one in wrong]
        if isinstance(refusal, DefinitionRefused):
            return [f"{self.place(name)}: {reason}" for name, reason in refusal.reasons]
        return [f"{self.place(*self._field_of(refusal))}: {refusal}"]

    def _field_of(self, refusal: VitrineError) -> Location:
        if str(refusal).startswith("source query"):
            return ("tasks",) if self.fields.get("tasks") else ("source_query",)
        name = _FIELD_OF_CODE.get(refusal.code)
        return (name,) if name else ()


class FileRefused(ConfigError):
    """A file that cannot be read; each reason begins with its place."""

    def __init__(self, reasons: Sequence[str], *, code: str = "YAML") -> None:
        self.reasons = tuple(reasons)
        super().__init__("\n".join(reasons), code=code)


def place(name: str, line: int, column: int) -> str:
    """Both count from 1."""
    return f"{name}, line {line}, column {column}"


def place_at(name: str, text: str, index: int) -> str:
    return place(name, text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index))


MAX_BYTES = 1024 * 1024


def read_text(file: Path) -> str:
    """FileRefused names the file and, if a byte is wrong, its place; a pipe or a device is never read."""
    try:
        # opening a pipe would wait for its writer
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
                raise FileRefused([f"{file.name}: this is {kind}; give a file, or rename it"])
            with os.fdopen(descriptor, "rb", closefd=False) as opened:
                content = opened.read(MAX_BYTES + 1)
        finally:
            os.close(descriptor)
    except OSError as exc:
        raise FileRefused([f"{file.name}: cannot read the file: {exc.strerror}"]) from exc
    if len(content) > MAX_BYTES:
        raise FileRefused([f"{file.name}: the file is larger than {MAX_BYTES // 1024} KB"])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        before = content[: exc.start].decode("utf-8-sig").split("\n")
        line, column = len(before), len(before[-1]) + 1
        raise FileRefused([f"{place(file.name, line, column)}: the file is not UTF-8 text; save it as UTF-8"]) from exc


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


FILE_SUFFIX = "_file"
"""`source_query_file` in a file names the file with the value of `source_query`."""

MAX_DEPTH = 64
MAX_VALUES = 100_000
_TOO_DEEP = f"the values are nested deeper than {MAX_DEPTH} levels"

_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True)
class Parsed:
    """A YAML document and the place of every value in it."""

    content: object
    locate: Callable[[Location], str]


def parse_text(name: str, text: str, variables: Variables | None = None) -> Document:
    """The fields of one pipeline; ConfigError names file, line and column."""
    parsed = parse(name, text, variables)
    if not isinstance(parsed.content, dict):
        raise FileRefused([f"{parsed.locate(())}: a pipeline is a mapping of fields, such as name: top_genres"])
    return Document(name, cast(dict[str, Any], parsed.content), parsed.locate)


def parse(name: str, text: str, variables: Variables | None = None) -> Parsed:
    """Any YAML document; duplicate keys and unknown variables are refused, all at once."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return Parsed(None, lambda _: place(name, 1, 1))
        # guarantee: D15
        mistakes = [*_duplicate_keys(name, root), *_replace_variables(name, text, root, variables)]
        if mistakes:
            raise FileRefused(mistakes)
        return Parsed(loader.construct_document(root), lambda location: _locate(name, root, location))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        where = place(name, mark.line + 1, mark.column + 1) if mark else name
        raise FileRefused([f"{where}: {_REMEDIES.get(exc.problem or '', exc.problem)}"]) from exc
    except yaml.reader.ReaderError as exc:
        raise FileRefused([f"{place_at(name, text, exc.position)}: {exc.reason}"]) from exc


_REMEDIES = {
    "found character '\\t' that cannot start any token": "indent with spaces: YAML does not allow tabs here",
    "mapping values are not allowed here": "YAML takes this colon for the start of another field;"
    " put the value in quotes, or write it on indented lines below `|`",
    "could not find expected ':'": "the lines above this one end without a colon;"
    " a field is `name: value`, and the further lines of a text are indented",
    "but found another document": "a file has one document; move what follows `---` to a file of its own",
}
"""Sentences for the most frequent of the parser's messages that do not say what to do."""


class _Loader(yaml.SafeLoader):
    """Refuses documents that are too deep or, with every alias replaced by its value, too large."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0  # of the node that is being composed
        self._sizes: dict[int, tuple[int, int]] = {}  # values and levels of each complete node

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        mark: yaml.Mark = self.peek_event().start_mark  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        is_alias: bool = self.check_event(yaml.AliasEvent)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ConstructorError(None, None, _TOO_DEEP, mark)  # pyright: ignore[reportUnknownArgumentType]
        node = super().compose_node(parent, index)  # pyright: ignore[reportUnknownMemberType, reportArgumentType]
        self._depth -= 1
        if is_alias and id(node) not in self._sizes:
            raise ConstructorError(None, None, "this alias is part of the value that it stands for", mark)  # pyright: ignore[reportUnknownArgumentType]
        if node is not None and not is_alias:
            self._measure(node, mark)  # pyright: ignore[reportUnknownArgumentType]
        return node

    def _measure(self, node: yaml.Node, mark: yaml.Mark) -> None:
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        sizes = [self._sizes[id(child)] for child in children]
        values, levels = 1 + sum(size[0] for size in sizes), 1 + max((size[1] for size in sizes), default=0)
        if levels > MAX_DEPTH:
            raise ConstructorError(None, None, _TOO_DEEP, mark)
        # guarantee: K12
        if values > MAX_VALUES:
            text = f"with its aliases this is more than {MAX_VALUES} values; remove aliases"
            raise ConstructorError(None, None, text, mark)
        self._sizes[id(node)] = values, levels

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError) as exc:
            kind = node.tag.rpartition(":")[2]
            raise ConstructorError(
                None, None, f"this is not a valid {kind}; put it in quotes if it is text", node.start_mark
            ) from exc


def _nodes(root: yaml.Node) -> Generator[tuple[yaml.Node, bool]]:
    """Every node once, and whether it is a key; a node with an alias may occur in many places, even in itself."""
    seen: set[int] = set()
    waiting = [(root, False)]
    while waiting:
        node, is_key = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node, is_key
        if isinstance(node, yaml.MappingNode):
            children = [(child, is_key or number == 0) for pair in node.value for number, child in enumerate(pair)]
        else:
            children = [(child, is_key) for child in node.value] if isinstance(node, yaml.SequenceNode) else []
        waiting += reversed(children)


def _duplicate_keys(name: str, root: yaml.Node) -> Generator[str]:
    for node, _ in _nodes(root):
        if not isinstance(node, yaml.MappingNode):
            continue
        first: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if (same := (key.tag, key.value)) in first:
                yield f"{_mark(name, key)}: '{key.value}' is already given in line {first[same]}; remove one of them"
            first.setdefault(same, key.start_mark.line + 1)


def _replace_variables(name: str, text: str, root: yaml.Node, variables: Variables | None) -> Generator[str]:
    """Replace the variables in every value; yields a sentence for each that is unknown."""
    if variables is None:
        return
    for node, is_key in _nodes(root):
        if is_key or not isinstance(node, yaml.ScalarNode):
            continue
        for unknown in variables.unknown(node.value):
            start = text.find(f"${{{unknown}}}", node.start_mark.index, node.end_mark.index)
            where = place_at(name, text, start) if start >= 0 else _mark(name, node)
            yield f"{where}: {variables.refusal(unknown)}"
        replaced = variables.replace(node.value)
        if replaced != node.value and node.style is None:
            # without quotes the value has the type that it would have if it stood there: ${size} may be a number
            node.tag = yaml.SafeLoader("").resolve(yaml.ScalarNode, replaced, (True, False))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        node.value = replaced


def _locate(name: str, root: yaml.Node, location: Location) -> str:
    """The place of a field: of its key, or of the item of a list; for a missing one that of what is around it."""
    node, found = root, root
    for part in location:
        if isinstance(node, yaml.MappingNode):
            pairs = {key.value: (key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}
            pair = pairs.get(part) or pairs.get(f"{part}{FILE_SUFFIX}")
            if pair is None:
                break
            found, node = pair
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            found = node = node.value[part]
        else:
            break
    return _mark(name, found)


def _mark(name: str, node: yaml.Node) -> str:
    return place(name, node.start_mark.line + 1, node.start_mark.column + 1)
