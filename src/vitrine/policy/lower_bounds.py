"""Whether a query returns everything when `$1` has the lowest value of its type."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from google.protobuf.message import Message
from postgast import pg_query_pb2 as pb

from vitrine.policy.syntax import descend, names_of, on_deep_stack, parse

_GREATER = frozenset({">", ">="})
_LESS = frozenset({"<", "<="})
_GROWING = frozenset({"+", "-"})
_SUBQUERIES = frozenset({pb.EXISTS_SUBLINK, pb.ANY_SUBLINK})
_CONDITIONS = frozenset({"where_clause", "having_clause", "quals"})

# Below these a condition decides only which rows are read
_TRANSPARENT = (pb.ParseResult, pb.RawStmt, pb.Node, pb.WithClause, pb.CommonTableExpr, pb.RangeSubselect, pb.JoinExpr)


class Place(NamedTuple):
    """A place in the text of a query, counted from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


@lru_cache(maxsize=256)
def other_use_of_checkpoint(text: str) -> Place | None:
    """The first `$1` that is not the lower bound of a condition; None if there is none.

    A lower bound is `x > $1` or `x >= $1` in a WHERE, ON or HAVING. Where `$1` has another use, rows may be hidden even
    if it has the lowest value of its type.
    """
    return on_deep_stack(lambda: _other_use(text))


def _other_use(text: str) -> Place | None:
    tree = parse(text)
    uses = {node.location for node in descend(tree) if isinstance(node, pb.ParamRef)}
    others = uses - {node.location for node in _lower_bounds(tree)}
    return _place(text, min(others)) if others else None


def _lower_bounds(tree: pb.ParseResult) -> Iterator[pb.ParamRef]:
    pending: list[tuple[Message, bool]] = [(tree, False)]  # with whether the node is a condition
    while pending:
        node, is_condition = pending.pop()
        if is_condition and isinstance(node, pb.A_Expr):
            yield from _bounds_of(node)
        elif _passes(node, is_condition):
            pending += _below(node, is_condition)


def _passes(node: Message, is_condition: bool) -> bool:
    """Whether a lower bound inside the node only adds rows to the result as it falls."""
    match node:
        case pb.BoolExpr():
            return is_condition and node.boolop != pb.NOT_EXPR
        case pb.SubLink():
            return is_condition and node.sub_link_type in _SUBQUERIES
        case pb.SelectStmt():
            # LIMIT chooses among the rows that the condition leaves
            return not (node.HasField("limit_count") or node.HasField("limit_offset"))
        case _:
            return isinstance(node, _TRANSPARENT)


def _below(node: Message, is_condition: bool) -> Iterator[tuple[Message, bool]]:
    for field, value in node.ListFields():
        if field.message_type is None:
            continue
        if isinstance(node, pb.SelectStmt) and field.name == "rarg" and node.op == pb.SETOP_EXCEPT:
            continue  # its rows are removed from the result
        if isinstance(node, pb.SelectStmt) and field.name in ("target_list", "values_lists"):
            continue
        if isinstance(node, pb.SubLink) and field.name == "testexpr":
            continue
        keeps = is_condition and isinstance(node, pb.Node | pb.BoolExpr)
        for child in value if field.is_repeated else (value,):
            yield child, keeps or field.name in _CONDITIONS


def _bounds_of(comparison: pb.A_Expr) -> Iterator[pb.ParamRef]:
    if comparison.kind != pb.AEXPR_OP:
        return
    operator = names_of(comparison.name)[-1]
    if operator in _GREATER:
        yield from _growing(comparison.rexpr)
    elif operator in _LESS:
        yield from _growing(comparison.lexpr)


def _growing(expression: pb.Node) -> Iterator[pb.ParamRef]:
    """`$1` in an expression that grows with it: a cast, or `$1 - interval '1 hour'`."""
    match expression.WhichOneof("node"):
        case "param_ref":
            yield expression.param_ref
        case "type_cast":
            yield from _growing(expression.type_cast.arg)
        case "a_expr" if expression.a_expr.kind == pb.AEXPR_OP and names_of(expression.a_expr.name)[-1] in _GROWING:
            yield from _growing(expression.a_expr.lexpr)
        case _:
            return


def _place(text: str, offset: int) -> Place:
    """The parser counts bytes."""
    before = text.encode()[:offset].decode(errors="replace")
    return Place(before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
