"""YAML text as fields, with the place of each."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, cast

import yaml
from yaml.constructor import ConstructorError

from vitrine.documents import Document
from vitrine.input_errors import Location
from vitrine.pipeline_files.places import FileRefused, place, place_at
from vitrine.pipeline_files.variables import Variables

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
