"""The columns of tables that a column of a query takes its values from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import Message
from postgast import pg_query_pb2 as pb

from vitrine.policy.syntax import children, column_name, descend, names_of, on_deep_stack, parse, single_select, star_of

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
