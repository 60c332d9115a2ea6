"""What a pipeline and its checks may read: one SELECT over allowed schemas, with functions from a list."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from google.protobuf.message import Message
from postgast import pg_query_pb2 as pb

from vitrine.core.checks import MART
from vitrine.errors import ConfigError, Place
from vitrine.sql.functions import ALLOWED_FUNCTIONS, FUNCTION_GROUPS, LONGEST_PADDING, Call, number_of
from vitrine.sql.inspect import GUIDE, Inspection
from vitrine.sql.parse import (
    Names,
    check_text,
    children,
    column_name,
    deparse,
    descend,
    names_of,
    on_deep_stack,
    parse,
    place_of_position,
    place_of_relation,
    single_select,
    star_of,
    too_complex,
    without_positions,
)

# The planner replaces a column of a subquery by its expression, wherever it is used, and computes constant expressions.
# No limit of the server applies to that: a short text can take all of its memory. So the size is computed here first.
MAX_EXPANDED_NODES = 1_000_000
MAX_CONSTANT_BYTES = 1024 * 1024
MAX_CONSTANTS_BYTES = 32 * 1024 * 1024
MAX_DIGITS = 10_000

_LARGEST_EXPONENT = 1000
_AGGREGATES = FUNCTION_GROUPS["Aggregates"] | FUNCTION_GROUPS["Window functions"]
_NUMERIC = FUNCTION_GROUPS["Numbers"]
_PADDED_TYPES = frozenset({"bpchar", "bit"})
_FIXED_BYTES = {"name": 64}
_EXPONENT = re.compile(r"[0-9][eE]\+?([0-9]{1,9})")
_MOST_DIGITS = 147_000
"""Of numeric."""


class _Value(NamedTuple):
    """An expression, with every column of a subquery replaced by its own expression."""

    nodes: int = 1
    constant: int | None = None  # bytes of its value if the planner computes it; None: it depends on rows
    computed: int = 0  # bytes of all constants that the planner computes for it


_DATA = _Value()
_Columns = Mapping[str, _Value]


@dataclass(frozen=True)
class _Scope:
    """The names that an expression may use; None: a table, whose columns are data."""

    items: Mapping[str, _Columns | None] = field(default_factory=dict[str, _Columns | None])
    queries: Mapping[str, Sequence[tuple[str, _Value]]] = field(default_factory=dict[str, Sequence[tuple[str, _Value]]])
    outer: "_Scope | None" = None

    def row(self, table: str) -> _Value | None:
        """The whole row of a table in FROM; None if there is none of this name."""
        scope: _Scope | None = self
        while scope is not None:
            if table in scope.items:
                return _sum([_Value(1), *(scope.items[table] or {}).values()])
            scope = scope.outer
        return None

    def column(self, names: Sequence[str]) -> _Value:
        *tables, name = names
        if not name:  # table.*
            return self.row(tables[-1]) or _DATA if tables else _DATA
        scope: _Scope | None = self
        while scope is not None:
            found = [
                columns[name]
                for alias, columns in scope.items.items()
                if columns is not None and name in columns and (not tables or alias == tables[-1])
            ]
            if found:
                return max(found, key=lambda one: (one.nodes, one.computed))
            scope = scope.outer
        return (None if tables else self.row(name)) or _DATA


def check_expansion(statement: pb.SelectStmt) -> None:
    """ConfigError for a query that is too large once its subqueries are expanded and its constants are computed."""
    _Expansion().select(statement, _Scope())


class _Expansion:
    """One pass over a query; adds up what the planner builds."""

    def __init__(self) -> None:
        self._nodes = 0
        self._computed = 0

    def select(self, select: pb.SelectStmt, outer: _Scope) -> Sequence[tuple[str, _Value]]:
        """The columns of a SELECT, as its reader sees them."""
        queries = dict(outer.queries)
        for node in select.with_clause.ctes:
            query = node.common_table_expr
            found = self.select(query.ctequery.select_stmt, _Scope({}, queries, outer))
            kept = query.ctematerialized == pb.CTEMaterializeAlways
            queries[query.ctename] = _renamed(_as_data(found) if kept else found, names_of(query.aliascolnames))
        scope = _Scope({}, queries, outer)
        if select.op != pb.SETOP_NONE:
            left, right = self.select(select.larg, scope), self.select(select.rarg, scope)
            return [(name, _united(a, b)) for (name, a), (_, b) in zip(left, right, strict=False)]
        if select.values_lists:
            return self._listed(select, scope)
        scope = self._from(select.from_clause, scope)
        columns: list[tuple[str, _Value]] = []
        for target in select.target_list:
            columns += self._target(target.res_target, scope)
        for child in children(select):
            if isinstance(child, pb.Node) and child.WhichOneof("node") not in _NOT_EXPRESSIONS:
                self._count(self._value(child, scope))
        return _as_data(columns) if _is_barrier(select) else columns

    def _listed(self, select: pb.SelectStmt, scope: _Scope) -> Sequence[tuple[str, _Value]]:
        rows = [[self._counted(one, scope) for one in row.list.items] for row in select.values_lists]
        columns = zip(*rows, strict=False)
        return [(f"column{number}", max(one, key=lambda v: v.computed)) for number, one in enumerate(columns, 1)]

    def _target(self, target: pb.ResTarget, scope: _Scope) -> list[tuple[str, _Value]]:
        table = star_of(target.val)
        if table is None:
            return [(target.name or column_name(target.val), self._counted(target.val, scope))]
        found = [columns for alias, columns in scope.items.items() if not table or alias == table[-1]]
        shown = [(name, value) for columns in found if columns is not None for name, value in columns.items()]
        for _, value in shown:
            self._count(value)
        return shown

    # -- FROM ---------------------------------------------------------------------------------------------------------

    def _from(self, nodes: Sequence[pb.Node], scope: _Scope) -> _Scope:
        items: dict[str, _Columns | None] = {}
        inner = _Scope(items, scope.queries, scope)
        for node in nodes:
            self._add(node, items, inner)
        return inner

    def _add(self, node: pb.Node, items: dict[str, _Columns | None], scope: _Scope) -> None:
        match node.WhichOneof("node"):
            case "range_var":
                named = node.range_var
                known = None if named.schemaname else scope.queries.get(named.relname)
                shown = None if known is None else _renamed(known, names_of(named.alias.colnames))
                items[named.alias.aliasname or named.relname] = None if shown is None else _by_name(shown)
            case "range_subselect":
                inner = node.range_subselect
                found = self.select(inner.subquery.select_stmt, scope)
                items[inner.alias.aliasname or f"#{len(items)}"] = _by_name(
                    _renamed(found, names_of(inner.alias.colnames))
                )
            case "range_function":
                self._add_function(node.range_function, items, scope)
            case "join_expr":
                self._add_join(node.join_expr, items, scope)
            case _:
                pass

    def _add_function(self, called: pb.RangeFunction, items: dict[str, _Columns | None], scope: _Scope) -> None:
        """The planner computes a function of constants in FROM as well."""
        calls = [entry.list.items[0] for entry in called.functions]
        largest = max((self._counted(call, scope) for call in calls), key=lambda one: (one.nodes, one.computed))
        names = [called.alias.aliasname] if called.HasField("alias") else [column_name(call) for call in calls]
        for name in names:
            items[name] = dict.fromkeys([*names_of(called.alias.colnames), *names], largest)

    def _add_join(self, join: pb.JoinExpr, items: dict[str, _Columns | None], scope: _Scope) -> None:
        inner: dict[str, _Columns | None] = {} if join.HasField("alias") else items
        for side in (join.larg, join.rarg):
            self._add(side, inner, scope)
        self._count(self._value(join.quals, _Scope({**items, **inner}, scope.queries, scope.outer)))
        joined = {name: one for columns in inner.values() if columns for name, one in columns.items()}
        if join.HasField("alias"):
            renamed = _renamed(list(joined.items()), names_of(join.alias.colnames))
            items[join.alias.aliasname] = _by_name(renamed)
        if join.HasField("join_using_alias"):
            items[join.join_using_alias.aliasname] = joined

    # -- expressions --------------------------------------------------------------------------------------------------

    def _counted(self, node: Message, scope: _Scope) -> _Value:
        value = self._value(node, scope)
        self._count(value)
        return value

    def _count(self, value: _Value) -> None:
        self._nodes += value.nodes
        self._computed += value.computed
        if self._nodes > MAX_EXPANDED_NODES:
            raise too_complex("is too large once its subqueries are expanded")
        if self._computed > MAX_CONSTANTS_BYTES:
            raise too_complex("has constants that take too much memory once they are computed")

    def _value(self, node: Message, scope: _Scope) -> _Value:
        match node:
            case pb.Node():
                kind = node.WhichOneof("node")
                return _Value(0, 0) if kind is None else self._value(getattr(node, kind), scope)
            case pb.ColumnRef():
                return scope.column(names_of(node.fields))
            case pb.A_Const():
                return _Value(1, node.ByteSize() + _exponent(node.fval.fval or node.sval.sval))
            case pb.SubLink():
                shown = self.select(node.subselect.select_stmt, scope)
                tested = self._value(node.testexpr, scope)
                return _Value(1 + tested.nodes + sum(one.nodes for _, one in shown), None, tested.computed)
            case pb.FuncCall():
                return self._call(node, scope)
            case pb.TypeCast():
                return self._cast(node, scope)
            case pb.A_Expr() if names_of(node.name)[-1:] == ["^"]:
                base, exponent = self._value(node.lexpr, scope), self._value(node.rexpr, scope)
                return _checked(_sum([base, exponent]), lambda: _power(base, node.rexpr), digits=True)
            case pb.TypeName() | pb.WindowDef():
                return _Value(1, 0)
            case _:
                values = [self._value(child, scope) for child in children(node)]
                total = _sum(values)
                return _checked(total, lambda: total.constant or 0)

    def _call(self, call: pb.FuncCall, scope: _Scope) -> _Value:
        values = [self._value(one, scope) for one in call.args]
        others = [self._value(child, scope) for child in (*call.agg_order, call.agg_filter)]
        total = _sum([*values, *others])
        name = names_of(call.funcname)[-1]
        if name in _AGGREGATES or call.HasField("over"):
            return _Value(total.nodes, None, total.computed)
        if name == "exp" and call.args:
            return _checked(total, lambda: _power(_Value(1, 1), call.args[0]), digits=True)
        if name in ("power", "pow") and len(call.args) == 2:
            return _checked(total, lambda: _power(values[0], call.args[1]), digits=True)
        sizes = [value.constant or 0 for value in values]
        return _checked(total, lambda: _grown(name, sizes), digits=name in _NUMERIC)

    def _cast(self, cast: pb.TypeCast, scope: _Scope) -> _Value:
        value, target = self._value(cast.arg, scope), cast.type_name
        name = names_of(target.names)[-1].lstrip("_")
        lengths = [number_of(one) or 0 for one in target.typmods] if name in _PADDED_TYPES else []
        longest = int(max([_FIXED_BYTES.get(name, 8), *lengths]))
        is_array = bool(target.array_bounds) or names_of(target.names)[-1].startswith("_")
        # an element needs two characters in the text of an array
        return _checked(value, lambda: max((value.constant or 0) * (longest // 2 if is_array else 1), longest))


_NOT_EXPRESSIONS = frozenset({"res_target", "range_var", "range_subselect", "range_function", "join_expr", "list"})


def _grown(name: str, sizes: Sequence[int]) -> int:
    """The largest result of a function for constants of these sizes."""
    match name:
        case "replace" | "regexp_replace" | "array_replace":
            return (sum(sizes[:1]) + 1) * (sum(sizes[2:3]) + 1)
        case "concat_ws" | "array_to_string" | "ts_headline":
            return (sum(sizes) + len(sizes)) * (max(sizes, default=0) + 1)
        case "jsonb_pretty":
            return sum(sizes) ** 2
        case "lpad" | "rpad":
            return 4 * LONGEST_PADDING
        case "format":
            return 4 * LONGEST_PADDING + (sum(sizes[:1]) + 1) * (sum(sizes[1:]) + 1)
        case "normalize":
            return 18 * sum(sizes)
        case _ if name.startswith("jsonb_path_"):
            return sum(sizes) ** 2
        case _ if name in _NUMERIC:
            return sum(sizes) + 16
        case _:
            return 8 * sum(sizes) + 16


def _exponent(text: str) -> int:
    """Digits of a number that is written with an exponent, also inside a text."""
    found = _EXPONENT.findall(text)
    return min(max(map(int, found)), _MOST_DIGITS) if found else 0


def _power(base: _Value, exponent: pb.Node) -> int:
    times = number_of(exponent)
    if times is None or abs(times) > _LARGEST_EXPONENT:
        return MAX_DIGITS + 1
    return int((base.constant or 0) * max(abs(times), 1))


def _checked(parts: _Value, size: Callable[[], int], *, digits: bool = False) -> _Value:
    """The value of an expression over these parts; too large a constant is refused."""
    if parts.constant is None:
        return _Value(parts.nodes + 1, None, parts.computed)
    bytes_ = size()
    if bytes_ > (MAX_DIGITS if digits else MAX_CONSTANT_BYTES):
        raise too_complex("has a constant expression with too large a value")
    return _Value(parts.nodes + 1, bytes_, parts.computed + bytes_)


def _sum(values: Sequence[_Value]) -> _Value:
    constants = [one.constant for one in values if one.constant is not None]
    return _Value(
        sum(one.nodes for one in values),
        sum(constants) if len(constants) == len(values) else None,
        sum(one.computed for one in values),
    )


def _united(first: _Value, second: _Value) -> _Value:
    return _Value(max(first.nodes, second.nodes), _sum([first, second]).constant, max(first.computed, second.computed))


def _is_barrier(select: pb.SelectStmt) -> bool:
    """Whether the planner keeps the SELECT as it is, so that its reader sees columns and no expressions."""
    is_limited = select.HasField("limit_count") or select.HasField("limit_offset")
    return bool(select.group_clause or select.distinct_clause or is_limited or select.HasField("having_clause"))


def _as_data(columns: Sequence[tuple[str, _Value]]) -> Sequence[tuple[str, _Value]]:
    return [(name, _DATA) for name, _ in columns]


def _renamed(columns: Sequence[tuple[str, _Value]], names: Sequence[str]) -> Sequence[tuple[str, _Value]]:
    renamed = [(name, value) for name, (_, value) in zip(names, columns, strict=False)]
    return [*renamed, *columns[len(renamed) :]]


def _by_name(columns: Sequence[tuple[str, _Value]]) -> dict[str, _Value]:
    """Of columns with one name, the largest."""
    found: dict[str, _Value] = {}
    for name, value in columns:
        known = found.get(name)
        found[name] = value if known is None or known.nodes + known.computed < value.nodes + value.computed else known
    return found


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


class CheckSql(NamedTuple):
    """A SELECT that passed the policy; text is what the parser deparsed, never what the user typed."""

    text: str

    def over(self, rows: str) -> str:
        """The text with every `mart` replaced, in the syntax tree, by a subquery that the caller has composed."""
        return on_deep_stack(lambda: _over(self.text, rows))


def check_sql(query: str) -> CheckSql:
    """The query of a check; ConfigError if it is anything but one SELECT that reads `mart` alone."""
    check_text(query)
    return _check_sql_cached(query)


@lru_cache(maxsize=256)
def _check_sql_cached(query: str) -> CheckSql:
    return on_deep_stack(lambda: _check_sql(query))


def _check_sql(query: str) -> CheckSql:
    tree = parse(query)
    statement = single_select(tree, query)
    inspection = _CheckInspection(query)
    inspection.inspect(statement)
    if not inspection.reads_rows:
        raise ConfigError(f"the query does not read {MART}, the rows to be published; write FROM {MART}", code="SCHEMA")
    check_expansion(statement)
    return CheckSql(deparse(tree))


class _CheckInspection(Inspection):
    """Neither schemas nor functions that an administrator allows for sources: the query runs in the target."""

    def __init__(self, text: str) -> None:
        super().__init__((), text)
        self.reads_rows = False

    def _check_relation(self, relation: pb.RangeVar, with_names: frozenset[str]) -> None:
        if MART in with_names:
            raise ConfigError(f"a WITH query has the name {MART}, which names the rows; rename it", code="SCHEMA")
        if relation.relname == MART and not relation.schemaname:
            self._count_relation()
            self.reads_rows = True
            return
        if relation.schemaname or relation.relname not in with_names:
            name = ".".join(filter(None, (relation.catalogname, relation.schemaname, relation.relname)))
            raise ConfigError(
                f"table '{name}' cannot be read by a check, which reads {MART}, the rows to be published, and nothing"
                f" else; write FROM {MART}",
                code="SCHEMA",
            )
        super()._check_relation(relation, with_names)

    def _check_function(self, names: Names, arguments: int) -> None:
        *schemas, function = names
        if schemas not in ([], ["pg_catalog"]) or function not in ALLOWED_FUNCTIONS:
            raise ConfigError(
                f"function '{'.'.join(names)}' cannot be called by a check, which executes in the target; choose one"
                f" from {GUIDE}",
                code="FUNC",
            )

    def _check_parameter(self, number: int) -> None:
        raise ConfigError(f"parameter ${number} has no value in a check; write the value itself", code="PARAM")


def _over(text: str, rows: str) -> str:
    tree, subquery = parse(text), single_select(parse(rows))
    for node in list(descend(tree)):
        if isinstance(node, pb.Node) and node.WhichOneof("node") == "range_var" and not node.range_var.schemaname:
            named = node.range_var
            if named.relname != MART:
                continue
            found = pb.RangeSubselect(alias=named.alias if named.HasField("alias") else pb.Alias(aliasname=MART))
            found.subquery.select_stmt.CopyFrom(subquery)
            node.range_subselect.CopyFrom(found)
    return deparse(tree)
