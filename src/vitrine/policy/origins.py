"""Places of a checked query in the text that the user typed: PostgreSQL executes another text of the same tree."""

from collections.abc import Iterator

from google.protobuf.message import Message
from postgast import pg_query_pb2 as pb

from vitrine.places import Place
from vitrine.policy.syntax import children, descend, on_deep_stack, own_location, parse


def place_of_position(typed: str, executed: str, position: int) -> Place | None:
    """The place of the character that PostgreSQL counts from 1 in the executed text; None if no node begins there."""
    offset = len(executed[: position - 1].encode())
    return on_deep_stack(lambda: _place_of_node(typed, executed, offset))


def place_of_relation(typed: str, schema: str, name: str | None = None) -> Place | None:
    """Where the query first names a relation, or any of a schema."""
    return on_deep_stack(lambda: _place_of_relation(typed, schema, name))


def _place_of_node(typed: str, executed: str, offset: int) -> Place | None:
    for one, other in _pairs(parse(executed), parse(typed)):
        if own_location(one) == offset and (found := own_location(other)) is not None:
            return Place.at_byte(typed, found)
    return None


def _place_of_relation(typed: str, schema: str, name: str | None) -> Place | None:
    found = [
        node.location
        for node in descend(parse(typed))
        if isinstance(node, pb.RangeVar) and node.schemaname == schema and name in (None, node.relname)
    ]
    return Place.at_byte(typed, min(found)) if found else None


def _pairs(first: Message, second: Message) -> Iterator[tuple[Message, Message]]:
    """The nodes of two trees that differ in positions only."""
    pending = [(first, second)]
    while pending:
        one, other = pending.pop()
        yield one, other
        pending.extend(zip(children(one), children(other), strict=False))
