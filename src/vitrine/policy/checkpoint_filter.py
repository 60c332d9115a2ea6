"""The query without its filter by the checkpoint: `modified >= $1` also hides rows whose `modified` is NULL."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from google.protobuf.message import Message
from postgast import pg_query_pb2 as pb

from vitrine.policy.syntax import (
    Names,
    deparse,
    descend,
    names_of,
    on_deep_stack,
    parse,
    single_select,
    star_of,
    without_positions,
)

_CURSOR_FIRST = frozenset({">", ">="})
_CURSOR_SECOND = frozenset({"<", "<="})


class Unfiltered(NamedTuple):
    """A query without its filter by the checkpoint."""

    text: str | None  # None: `$1` has another use, so the filter is not known
    adds_nulls: bool  # a column may be NULL in the result although its table declares it NOT NULL


@lru_cache(maxsize=256)
def without_checkpoint_filter(text: str, cursor: str) -> Unfiltered:
    """The query without the conditions of its WHERE that compare its column `cursor` with `$1`."""
    return on_deep_stack(lambda: _without_filter(text, cursor))


def _without_filter(text: str, cursor: str) -> Unfiltered:
    tree = without_positions(parse(text))
    select = single_select(tree)
    adds_nulls = any(map(_adds_nulls, descend(tree)))
    if _chooses_rows(select):
        return Unfiltered(None, adds_nulls)
    cursors = _Cursors(select, cursor)
    _set_where(select, [one for one in _conjuncts(select.where_clause) if not cursors.is_filter(one)])
    is_used = any(isinstance(node, pb.ParamRef) for node in descend(tree))
    return Unfiltered(None if is_used else deparse(tree), adds_nulls)


def _chooses_rows(select: pb.SelectStmt) -> bool:
    """LIMIT and DISTINCT ON choose among the rows that the filter leaves."""
    is_limited = select.HasField("limit_count") or select.HasField("limit_offset")
    return is_limited or any(one.WhichOneof("node") is not None for one in select.distinct_clause)


class _Cursors:
    """Recognises the cursor column of a SELECT in its conditions."""

    def __init__(self, select: pb.SelectStmt, cursor: str) -> None:
        self._cursor = cursor
        targets = [target.res_target for target in select.target_list]
        self._stars = [fields for target in targets if (fields := star_of(target.val)) is not None]
        self._expressions = [target.val for target in targets if _output_name(target) == cursor]
        sources = select.from_clause
        self._is_one_relation = len(sources) == 1 and sources[0].WhichOneof("node") != "join_expr"

    def is_filter(self, condition: pb.Node) -> bool:
        """Whether the condition is of no effect on rows with a cursor, or hides exactly those without one."""
        kind = condition.WhichOneof("node")
        if kind == "bool_expr" and condition.bool_expr.boolop == pb.OR_EXPR:
            return any(map(self._is_null_test, condition.bool_expr.args))
        if kind != "a_expr" or condition.a_expr.kind != pb.AEXPR_OP:
            return False
        compared, operator = condition.a_expr, names_of(condition.a_expr.name)[-1]
        if operator in _CURSOR_FIRST:
            return self._is_cursor(compared.lexpr) and _is_checkpoint(compared.rexpr)
        return operator in _CURSOR_SECOND and self._is_cursor(compared.rexpr) and _is_checkpoint(compared.lexpr)

    def _is_null_test(self, condition: pb.Node) -> bool:
        test = condition.null_test
        return (
            condition.WhichOneof("node") == "null_test"
            and test.nulltesttype == pb.IS_NULL
            and self._is_cursor(test.arg)
        )

    def _is_cursor(self, expression: pb.Node) -> bool:
        if expression in self._expressions:
            return True
        if expression.WhichOneof("node") != "column_ref":
            return False
        *table, column = names_of(expression.column_ref.fields)
        # `SELECT *` has one column of this name, or the query would be refused
        if column == self._cursor and any(not one or self._is_same(table, one) for one in self._stars):
            return True
        return self._is_selected(table, column)

    def _is_selected(self, table: Names, column: str) -> bool:
        columns = (one.column_ref for one in self._expressions if one.WhichOneof("node") == "column_ref")
        selected = (names_of(one.fields) for one in columns)
        return any(name == column and self._is_same(table, named) for *named, name in selected)

    def _is_same(self, table: Names, other: Names) -> bool:
        """Whether `f.modified` and `modified` name one column."""
        return table == other or (self._is_one_relation and not (table and other))


def _conjuncts(condition: pb.Node) -> Iterator[pb.Node]:
    pending = [condition] if condition.WhichOneof("node") else []
    while pending:
        one = pending.pop(0)
        if one.WhichOneof("node") == "bool_expr" and one.bool_expr.boolop == pb.AND_EXPR:
            pending[:0] = one.bool_expr.args
        else:
            yield one


def _set_where(select: pb.SelectStmt, conditions: Sequence[pb.Node]) -> None:
    where = pb.Node()
    if len(conditions) == 1:
        where.CopyFrom(conditions[0])
    elif conditions:
        where.bool_expr.boolop = pb.AND_EXPR
        where.bool_expr.args.extend(conditions)
    select.ClearField("where_clause")
    if conditions:
        select.where_clause.CopyFrom(where)


def _is_checkpoint(expression: pb.Node) -> bool:
    """`$1`, perhaps in an expression such as `$1 - interval '1 hour'`."""
    nodes = list(descend(expression))
    has_parameter = any(isinstance(node, pb.ParamRef) for node in nodes)
    return has_parameter and not any(isinstance(node, pb.ColumnRef | pb.SelectStmt) for node in nodes)


def _output_name(target: pb.ResTarget) -> str:
    if target.name or target.val.WhichOneof("node") != "column_ref":
        return target.name
    return names_of(target.val.column_ref.fields)[-1]


def _adds_nulls(node: Message) -> bool:
    if isinstance(node, pb.JoinExpr):
        return node.jointype != pb.JOIN_INNER
    return isinstance(node, pb.GroupingSet)
