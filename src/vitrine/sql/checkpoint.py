"""How a query uses its checkpoint `$1`, and where its cursor comes from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from google.protobuf.message import Message
from postgast import pg_query_pb2 as pb

from vitrine.sql.parse import (
    Names,
    children,
    column_name,
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
    for descriptor, value in node.ListFields():
        if descriptor.message_type is None:
            continue
        if isinstance(node, pb.SelectStmt) and descriptor.name == "rarg" and node.op == pb.SETOP_EXCEPT:
            continue  # its rows are removed from the result
        if isinstance(node, pb.SelectStmt) and descriptor.name in ("target_list", "values_lists"):
            continue
        if isinstance(node, pb.SubLink) and descriptor.name == "testexpr":
            continue
        keeps = is_condition and isinstance(node, pb.Node | pb.BoolExpr)
        for child in value if descriptor.is_repeated else (value,):
            yield child, keeps or descriptor.name in _CONDITIONS


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


Relation = tuple[str, str]
"""Schema and name."""

Origin = tuple[Relation, str]
"""A column of a relation."""

Catalog = Mapping[Relation, Sequence[str]]
"""The columns of every relation that the query names, in their order."""

_COMPARISONS = frozenset({"<", "<=", "=", ">=", ">", "BETWEEN"})


@dataclass(frozen=True)
class Lineage:
    """Where the values of a column come from."""

    origins: frozenset[Origin]
    is_plain: bool  # one column of a table, unchanged
    filtered: frozenset[Origin]  # columns that the query itself compares with `$1`


def lineage_of(text: str, column: str, catalog: Catalog) -> Lineage | None:
    """The lineage of a column of the query; None where it cannot be decided."""
    return on_deep_stack(lambda: _lineage(text, column, catalog))


def _lineage(text: str, column: str, catalog: Catalog) -> Lineage | None:
    resolver = _Resolver(catalog)
    try:
        shown = resolver.select(single_select(parse(text)), _Scope())
    except _Undecided:
        return None
    found = [value for name, value in shown.columns if name == column]
    if not found:
        return None
    value = _together(found)
    return Lineage(value.origins, value.is_plain, frozenset(resolver.filtered))


class _Undecided(Exception):
    """The query has a form that is not followed."""


@dataclass(frozen=True)
class _Value:
    origins: frozenset[Origin] = frozenset()
    is_plain: bool = False


@dataclass(frozen=True)
class _Output:
    """What a SELECT returns."""

    columns: Sequence[tuple[str, _Value]]
    in_order: bool = True  # False: USING merged columns, so that a place in the list says nothing

    def renamed(self, names: Sequence[str]) -> "_Output":
        if not names:
            return self
        columns = list(self.numbered())
        return _Output(
            [(name, value) for name, (_, value) in zip(names, columns, strict=False)] + columns[len(names) :]
        )

    def numbered(self) -> Sequence[tuple[str, _Value]]:
        if not self.in_order:
            raise _Undecided
        return self.columns


@dataclass(frozen=True)
class _Item:
    """A relation in FROM."""

    alias: str
    output: _Output
    others: _Value | None = None  # of columns without a known name: those of a function

    def find(self, name: str) -> _Value | None:
        found = [value for column, value in self.output.columns if column == name]
        return _together(found) if found else None

    def row(self) -> _Value:
        values = [value for _, value in self.output.columns] + ([self.others] if self.others else [])
        return _Value(_together(values).origins)


@dataclass(frozen=True)
class _Scope:
    """The names that an expression may use."""

    items: Sequence[_Item] = ()
    queries: Mapping[str, _Output] = field(default_factory=dict[str, _Output])  # by the name in WITH
    outer: "_Scope | None" = None

    def column(self, names: Sequence[str]) -> _Value:
        found = self._qualified(*names[-2:]) if len(names) > 1 else self._unqualified(names[0])
        if found is not None:
            return found
        if self.outer is None:
            raise _Undecided
        return self.outer.column(names)

    def _qualified(self, alias: str, name: str) -> _Value | None:
        for item in self.items:
            if item.alias == alias:
                return item.find(name) or item.others
        return None

    def _unqualified(self, name: str) -> _Value | None:
        found = [value for item in self.items if (value := item.find(name)) is not None]
        if found:
            return _together(found)
        for item in self.items:
            if item.alias == name:
                return item.others or item.row()
        others = [item.others for item in self.items if item.others is not None]
        return _together(others) if others else None


class _Resolver:
    """One pass over a query; records what it compares with `$1`."""

    def __init__(self, catalog: Catalog) -> None:
        self.filtered: set[Origin] = set()
        self._catalog = catalog

    def select(self, select: pb.SelectStmt, outer: _Scope) -> _Output:
        scope = self._with_queries(select, outer)
        if select.op != pb.SETOP_NONE:
            return self._united(select, scope)
        if select.values_lists:
            return self._listed(select, scope)
        items, in_order = self._from(select.from_clause, scope)
        scope = _Scope(items, scope.queries, scope)
        for part in (select.where_clause, select.having_clause):
            self._note_comparisons(part, scope)
        columns: list[tuple[str, _Value]] = []
        for target in select.target_list:
            columns += self._target(target.res_target, scope)
        has_star = any(star_of(target.res_target.val) is not None for target in select.target_list)
        in_order = in_order and all(item.output.in_order for item in items)
        return _Output(columns, in_order or not has_star)

    def _with_queries(self, select: pb.SelectStmt, outer: _Scope) -> _Scope:
        queries = dict(outer.queries)
        for node in select.with_clause.ctes:
            query = node.common_table_expr
            found = self.select(query.ctequery.select_stmt, _Scope((), queries, outer))
            queries[query.ctename] = found.renamed(names_of(query.aliascolnames))
        return _Scope((), queries, outer)

    def _united(self, select: pb.SelectStmt, scope: _Scope) -> _Output:
        left, right = self.select(select.larg, scope).numbered(), self.select(select.rarg, scope).numbered()
        return _Output([(name, _together([a, b])) for (name, a), (_, b) in zip(left, right, strict=False)])

    def _listed(self, select: pb.SelectStmt, scope: _Scope) -> _Output:
        rows = [[self._value(one, scope) for one in row.list.items] for row in select.values_lists]
        columns = zip(*rows, strict=False)
        return _Output([(f"column{number}", _together(one)) for number, one in enumerate(columns, 1)])

    # -- FROM ---------------------------------------------------------------------------------------------------------

    def _from(self, nodes: Sequence[pb.Node], scope: _Scope) -> tuple[list[_Item], bool]:
        items: list[_Item] = []
        in_order = True
        for node in nodes:
            found, ordered = self._items(node, _Scope(items, scope.queries, scope))
            items, in_order = [*items, *found], in_order and ordered
        return items, in_order

    def _items(self, node: pb.Node, scope: _Scope) -> tuple[list[_Item], bool]:
        """The relations of one entry of FROM, which may use those before it; False: USING merged their columns."""
        match node.WhichOneof("node"):
            case "range_var":
                return [self._relation(node.range_var, scope)], True
            case "range_subselect":
                inner = node.range_subselect
                found = self.select(inner.subquery.select_stmt, scope)
                return [_Item(inner.alias.aliasname, found.renamed(names_of(inner.alias.colnames)))], True
            case "range_function":
                return [self._function(node.range_function, scope)], True
            case "join_expr":
                return self._join(node.join_expr, scope)
            case _:
                raise _Undecided

    def _relation(self, named: pb.RangeVar, scope: _Scope) -> _Item:
        alias = named.alias.aliasname or named.relname
        relation = (named.schemaname, named.relname)
        if not named.schemaname and named.relname in scope.queries:
            output = scope.queries[named.relname]
        elif relation in self._catalog:
            columns = self._catalog[relation]
            output = _Output([(name, _Value(frozenset({(relation, name)}), is_plain=True)) for name in columns])
        else:
            raise _Undecided
        return _Item(alias, output.renamed(names_of(named.alias.colnames)))

    def _function(self, called: pb.RangeFunction, scope: _Scope) -> _Item:
        calls = [entry.list.items[0] for entry in called.functions]
        values = _Value(_together([self._value(call, scope) for call in calls]).origins)
        names = [*names_of(called.alias.colnames), *(one.column_def.colname for one in called.coldeflist)]
        return _Item(called.alias.aliasname, _Output([(name, values) for name in names]), values)

    def _join(self, join: pb.JoinExpr, scope: _Scope) -> tuple[list[_Item], bool]:
        left, left_ordered = self._items(join.larg, scope)
        right, right_ordered = self._items(join.rarg, _Scope([*scope.items, *left], scope.queries, scope.outer))
        items = [*left, *right]
        self._note_comparisons(join.quals, _Scope([*scope.items, *items], scope.queries, scope.outer))
        in_order = left_ordered and right_ordered and not (join.is_natural or join.using_clause)
        if join.HasField("join_using_alias"):
            raise _Undecided
        if not join.HasField("alias"):
            return items, in_order
        output = _Output([column for item in items for column in item.output.columns], in_order)
        return [_Item(join.alias.aliasname, output.renamed(names_of(join.alias.colnames)))], in_order

    # -- expressions --------------------------------------------------------------------------------------------------

    def _target(self, target: pb.ResTarget, scope: _Scope) -> Iterator[tuple[str, _Value]]:
        table = star_of(target.val)
        if table is None:
            yield target.name or column_name(target.val), self._value(target.val, scope)
            return
        items = [item for item in scope.items if not table or item.alias == table[-1]]
        if not items or any(item.others is not None and not item.output.columns for item in items):
            raise _Undecided
        for item in items:
            yield from item.output.columns

    def _value(self, node: Message, scope: _Scope) -> _Value:
        match node:
            case pb.Node() if node.WhichOneof("node") is None:
                return _Value()
            case pb.Node():
                return self._value(getattr(node, node.WhichOneof("node") or ""), scope)
            case pb.ColumnRef():
                if node.fields[-1].WhichOneof("node") == "a_star":
                    return scope.column(names_of(node.fields)[:-1])
                return scope.column(names_of(node.fields))
            case pb.SubLink():
                shown = self.select(node.subselect.select_stmt, scope)
                tested = self._value(node.testexpr, scope)
                return _Value(_together([tested, *(value for _, value in shown.columns)]).origins)
            case pb.WindowDef():
                return _Value()  # it chooses rows, and is no value
            case _:
                return _Value(_together([self._value(child, scope) for child in children(node)]).origins)

    def _note_comparisons(self, condition: Message, scope: _Scope) -> None:
        pending: list[Message] = [condition]
        while pending:
            node = pending.pop()
            if isinstance(node, pb.SubLink):
                self.select(node.subselect.select_stmt, scope)
                pending.append(node.testexpr)
                continue
            if isinstance(node, pb.A_Expr) and names_of(node.name)[-1] in _COMPARISONS and _has_checkpoint(node):
                sides = [self._value(side, scope) for side in (node.lexpr, node.rexpr)]
                for value in sides:
                    self.filtered.update(value.origins if value.is_plain else ())
                continue
            pending.extend(children(node))


def _together(values: Sequence[_Value]) -> _Value:
    if len(values) == 1:
        return values[0]
    return _Value(frozenset[Origin]().union(*(value.origins for value in values)))


def _has_checkpoint(expression: Message) -> bool:
    return any(isinstance(node, pb.ParamRef) for node in descend(expression))
