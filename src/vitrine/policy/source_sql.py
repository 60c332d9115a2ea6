"""What a pipeline may read: one SELECT over allowed schemas, with functions from a list."""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache

from postgast import pg_query_pb2 as pb

from vitrine.errors import ConfigError
from vitrine.places import Place
from vitrine.policy.expansion import check_expansion
from vitrine.policy.functions import Call
from vitrine.policy.inspection import Inspection
from vitrine.policy.origins import place_of_position, place_of_relation
from vitrine.policy.syntax import check_text, deparse, descend, on_deep_stack, parse, single_select, without_positions


@dataclass(frozen=True)
class ReadOnlySql:
    """A single SELECT that passed the policy; text is what the parser deparsed, never what the user typed."""

    text: str
    typed: str = field(compare=False)  # for places in errors
    relations: frozenset[tuple[str, str]]  # (schema, table) read
    types: frozenset[tuple[str, str]]  # (schema, type) named, outside pg_catalog
    functions: frozenset[Call]  # called, outside pg_catalog
    uses_checkpoint: bool  # whether $1 occurs

    def bind(self, literal: str | None, type_name: str) -> str:
        """The text with every $1 replaced, in the syntax tree, by `literal` cast to `type_name`; None becomes NULL."""
        if not self.uses_checkpoint:
            return self.text
        if literal is not None and "\0" in literal:
            raise ConfigError("the checkpoint contains a NUL character; reset it to a readable value", code="NUL")
        return on_deep_stack(lambda: _bind(self.text, literal, type_name))

    def place_of_position(self, position: int) -> Place | None:
        """The place that PostgreSQL names in an error about `text`, in what the user typed."""
        return place_of_position(self.typed, self.text, position)

    def place_of_relation(self, schema: str, name: str | None = None) -> Place | None:
        """Where the query first names a relation, or any of a schema."""
        return place_of_relation(self.typed, schema, name)


def read_only(sql: str, allowed_schemas: Collection[str], listed: Collection[Call] = ()) -> ReadOnlySql:
    """The query as it will be executed; ConfigError if it is anything but one read-only SELECT.

    `listed`: functions that an administrator added to those of the list.
    """
    check_text(sql)
    return _read_only_cached(sql, frozenset(allowed_schemas), frozenset(listed))


@lru_cache(maxsize=256)
def _read_only_cached(sql: str, allowed_schemas: frozenset[str], listed: frozenset[Call]) -> ReadOnlySql:
    # a pipeline's query is checked again on every run; the answer depends on nothing else
    try:
        return on_deep_stack(lambda: _read_only(sql, allowed_schemas, listed))
    except ConfigError as refused:
        if refused.place is None:
            raise
        raise ConfigError(f"source query, {refused.place}: {refused}", code=refused.code, place=refused.place) from None


def _read_only(sql: str, allowed_schemas: Collection[str], listed: Collection[Call]) -> ReadOnlySql:
    tree = parse(sql)
    inspection = Inspection(allowed_schemas, sql, listed)
    statement = single_select(tree, sql)
    inspection.inspect(statement)
    # guarantee: G18
    check_expansion(statement)
    return ReadOnlySql(
        text=deparse(tree),
        typed=sql,
        relations=frozenset(inspection.relations),
        types=frozenset(inspection.types),
        functions=frozenset(inspection.functions),
        uses_checkpoint=inspection.uses_checkpoint,
    )


def _bind(text: str, literal: str | None, type_name: str) -> str:
    tree = parse(text)
    value = pb.TypeCast(type_name=_parse_type(type_name))
    if literal is None:
        value.arg.a_const.isnull = True
    else:
        value.arg.a_const.sval.sval = literal
    for node in list(descend(tree)):
        if isinstance(node, pb.Node) and node.WhichOneof("node") == "param_ref":
            node.type_cast.CopyFrom(value)
    return deparse(tree)


def _parse_type(type_name: str) -> pb.TypeName:
    tree, expected = parse(f"SELECT NULL::{type_name}"), parse("SELECT NULL::text")
    found = _first_target(tree).type_cast.type_name
    _first_target(expected).type_cast.type_name.CopyFrom(found)
    if not found.names or without_positions(tree) != without_positions(expected):
        raise ConfigError(
            f"{type_name!r} is not the name of a type; give one that format_type() returns", code="SYNTAX"
        )
    return found


def _first_target(tree: pb.ParseResult) -> pb.Node:
    return tree.stmts[0].stmt.select_stmt.target_list[0].res_target.val
