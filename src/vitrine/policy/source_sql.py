"""What a pipeline may read: one SELECT over allowed schemas, with functions from a list."""

import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate
from typing import TypeVar

import postgast
from google.protobuf.message import DecodeError, EncodeError, Message
from postgast import pg_query_pb2 as pb

from vitrine.errors import ConfigError
from vitrine.policy.functions import ALLOWED_FUNCTIONS

GUIDE = "docs/source-sql.md"

MAX_BYTES = 64 * 1024
MAX_PARENTHESES = 500
MAX_NODES = 50_000
MAX_WITH_NAMES = 200
# protobuf reads at most 100 nested messages; the difference is reserved for the literal that replaces $1.
MAX_DEPTH = 90

PARSER_STACK_BYTES = 512 * 1024 * 1024

KNOWN_NODES: frozenset[type[Message]] = frozenset(
    {
        # The query
        pb.Node,
        pb.List,
        pb.SelectStmt,
        pb.WithClause,
        pb.CommonTableExpr,
        pb.ResTarget,
        pb.Alias,
        # What it reads
        pb.RangeVar,
        pb.RangeSubselect,
        pb.RangeFunction,
        pb.ColumnDef,
        pb.JoinExpr,
        # Columns and constants
        pb.ColumnRef,
        pb.A_Star,
        pb.ParamRef,
        pb.A_Const,
        pb.Integer,
        pb.Float,
        pb.Boolean,
        pb.String,
        pb.BitString,
        pb.SQLValueFunction,
        # Expressions
        pb.A_Expr,
        pb.BoolExpr,
        pb.NullTest,
        pb.BooleanTest,
        pb.SubLink,
        pb.CaseExpr,
        pb.CaseWhen,
        pb.CoalesceExpr,
        pb.MinMaxExpr,
        pb.A_ArrayExpr,
        pb.A_Indices,
        pb.A_Indirection,
        pb.RowExpr,
        pb.TypeCast,
        pb.TypeName,
        pb.CollateClause,
        # Calls, windows, grouping, order
        pb.FuncCall,
        pb.NamedArgExpr,
        pb.WindowDef,
        pb.SortBy,
        pb.GroupingSet,
        pb.GroupingFunc,
        # SQL/JSON, without JSON_TABLE
        pb.JsonObjectConstructor,
        pb.JsonArrayConstructor,
        pb.JsonArrayQueryConstructor,
        pb.JsonObjectAgg,
        pb.JsonArrayAgg,
        pb.JsonAggConstructor,
        pb.JsonKeyValue,
        pb.JsonValueExpr,
        pb.JsonFormat,
        pb.JsonReturning,
        pb.JsonOutput,
        pb.JsonIsPredicate,
        pb.JsonFuncExpr,
        pb.JsonBehavior,
        pb.JsonArgument,
        pb.JsonParseExpr,
        pb.JsonScalarExpr,
        pb.JsonSerializeExpr,
    }
)

CLOCKS = frozenset(
    {
        pb.SVFOP_CURRENT_DATE,
        pb.SVFOP_CURRENT_TIME,
        pb.SVFOP_CURRENT_TIME_N,
        pb.SVFOP_CURRENT_TIMESTAMP,
        pb.SVFOP_CURRENT_TIMESTAMP_N,
        pb.SVFOP_LOCALTIME,
        pb.SVFOP_LOCALTIME_N,
        pb.SVFOP_LOCALTIMESTAMP,
        pb.SVFOP_LOCALTIMESTAMP_N,
    }
)

# Their input functions read the catalog: 'secret.t'::regclass reveals whether that table exists.
CATALOG_TYPE_PREFIXES = ("reg", "pg_", "aclitem")

# Columns that a function in FROM has without declaring them; no function has one of these names.
BUILT_IN_COLUMNS = frozenset({"key", "value", "ordinality"})

POSITIONS = frozenset(
    {"location", "stmt_location", "stmt_len", "list_start", "list_end", "rexpr_list_start", "rexpr_list_end"}
)

Result = TypeVar("Result")
Names = list[str]

_stack_size_lock = threading.Lock()


@dataclass(frozen=True)
class ReadOnlySql:
    """A single SELECT that passed the policy; text is what the parser deparsed, never what the user typed."""

    text: str
    relations: frozenset[tuple[str, str]]  # (schema, table) read
    uses_checkpoint: bool  # whether $1 occurs

    def bind(self, literal: str | None, type_name: str) -> str:
        """The text with every $1 replaced, in the syntax tree, by `literal` cast to `type_name`; None becomes NULL."""
        if not self.uses_checkpoint:
            return self.text
        if literal is not None and "\0" in literal:
            raise ConfigError("the checkpoint contains a NUL character; reset it to a readable value", code="NUL")
        return _on_deep_stack(lambda: _bind(self.text, literal, type_name))


def read_only(sql: str, allowed_schemas: Collection[str]) -> ReadOnlySql:
    """The query as it will be executed; ConfigError if it is anything but one read-only SELECT."""
    _check_text(sql)
    return _read_only_cached(sql, frozenset(allowed_schemas))


@lru_cache(maxsize=256)
def _read_only_cached(sql: str, allowed_schemas: frozenset[str]) -> ReadOnlySql:
    # a pipeline's query is checked again on every run; the answer depends on nothing else
    return _on_deep_stack(lambda: _read_only(sql, allowed_schemas))


def _check_text(sql: str) -> None:
    if "\0" in sql:
        raise ConfigError("the query contains a NUL character; remove it", code="NUL")
    # A lone surrogate has no UTF-8 form; counting must not fail before the parser reports it.
    if len(sql.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise _too_complex(f"is longer than {MAX_BYTES // 1024} KB")
    # The tree has no parentheses, so they are counted in the text; the few inside strings do not matter.
    if max(accumulate((c == "(") - (c == ")") for c in sql), default=0) > MAX_PARENTHESES:
        raise _too_complex(f"nests more than {MAX_PARENTHESES} parentheses")


def _read_only(sql: str, allowed_schemas: Collection[str]) -> ReadOnlySql:
    tree = _parse(sql)
    inspection = _Inspection(allowed_schemas)
    inspection.inspect(_single_select(tree))
    return ReadOnlySql(_deparse(tree), frozenset(inspection.relations), inspection.uses_checkpoint)


def _single_select(tree: pb.ParseResult) -> pb.SelectStmt:
    if not tree.stmts:
        raise ConfigError("the query is empty; write one SELECT", code="EMPTY")
    if len(tree.stmts) > 1:
        raise ConfigError(
            f"the query has {len(tree.stmts)} statements, but a source needs exactly one; keep a single SELECT",
            code="MULTIPLE_STATEMENTS",
        )
    statement = tree.stmts[0].stmt
    if statement.WhichOneof("node") != "select_stmt":
        kinds = [kind.DESCRIPTOR.name for kind in _children(statement)]
        raise ConfigError(
            f"{', '.join(kinds)} is not a SELECT, and a source only reads; write a SELECT", code="NOT_SELECT"
        )
    return statement.select_stmt


class _Inspection:
    """One pass over a tree, deny by default; records what the query reads."""

    def __init__(self, allowed_schemas: Collection[str]) -> None:
        self.allowed_schemas = allowed_schemas
        self.relations: set[tuple[str, str]] = set()
        self.uses_checkpoint = False
        self.with_names = 0
        self.function_columns: dict[str, frozenset[str]] = {}  # by the alias of a function in FROM
        self.qualified_columns: list[tuple[str, str]] = []

    def inspect(self, statement: pb.SelectStmt) -> None:
        # A list instead of recursion: the user controls the depth of the tree, and Python's stack is limited.
        pending: list[tuple[Message, frozenset[str], int]] = [(statement, frozenset(), 1)]
        seen = 0
        while pending:
            node, with_names, depth = pending.pop()
            seen += 1
            if depth > MAX_DEPTH or seen > MAX_NODES:
                raise _too_complex("is nested too deeply" if depth > MAX_DEPTH else "has too many parts")
            self._check(node, with_names)
            children = list(self._children_in_scope(node, with_names))
            pending.extend((child, scope, depth + 1) for child, scope in reversed(children))
        self._check_columns_of_functions()

    def _children_in_scope(self, node: Message, scope: frozenset[str]) -> Iterator[tuple[Message, frozenset[str]]]:
        """A WITH name is visible to the queries after it and to its own SELECT, not to itself nor outside."""
        if isinstance(node, pb.WithClause):
            for query in node.ctes:
                yield query, scope
                scope |= {query.common_table_expr.ctename}
            return
        inner = scope
        if isinstance(node, pb.SelectStmt) and node.HasField("with_clause"):
            self.with_names += len(node.with_clause.ctes)
            if self.with_names > MAX_WITH_NAMES:
                raise _too_complex(f"has more than {MAX_WITH_NAMES} WITH queries")
            inner = scope.union(query.common_table_expr.ctename for query in node.with_clause.ctes)
        for child in _children(node):
            yield child, scope if isinstance(child, pb.WithClause) else inner

    def _check(self, node: Message, with_names: frozenset[str]) -> None:
        match node:
            case pb.ColumnRef():
                self._note_column(_names(node.fields))
            case pb.FuncCall():
                self._check_function(_names(node.funcname))
            case pb.A_Expr():
                self._check_operator(_names(node.name))
            case pb.SubLink():
                self._check_operator(_names(node.oper_name))
            case pb.SortBy():
                self._check_operator(_names(node.use_op))
            case pb.TypeName():
                self._check_type(node)
            case pb.CollateClause():
                self._check_home("collation", _names(node.collname), {"pg_catalog"})
            case pb.ParamRef():
                self._check_parameter(node.number)
            case pb.SQLValueFunction():
                if node.op not in CLOCKS:
                    raise _function_refused(pb.SQLValueFunctionOp.Name(node.op).removeprefix("SVFOP_").lower())
            case pb.A_Indirection():
                for field in filter(None, _names(node.indirection)):
                    raise _hidden_call(f"(…).{field}")
            case pb.RangeVar():
                self._check_relation(node, with_names)
            case pb.RangeFunction():
                self._note_function_columns(node)
            case pb.WithClause():
                if node.recursive:
                    raise _unknown_node("WithClause RECURSIVE")
            case pb.IntoClause():
                raise ConfigError("INTO creates a table, and a source only reads; remove it", code="INTO")
            case pb.LockingClause():
                raise ConfigError("FOR UPDATE or FOR SHARE locks rows of the source; remove it", code="LOCKING")
            case _:
                if type(node) not in KNOWN_NODES:
                    raise _unknown_node(node.DESCRIPTOR.name)

    def _check_relation(self, relation: pb.RangeVar, with_names: frozenset[str]) -> None:
        table, schema = relation.relname, relation.schemaname
        if relation.catalogname:
            raise ConfigError(
                f"table '{relation.catalogname}.{schema}.{table}' names a database; write schema.table", code="SCHEMA"
            )
        if schema:
            self._check_home("table", [schema, table], set(self.allowed_schemas))
            self.relations.add((schema, table))
        elif table not in with_names:
            raise ConfigError(
                f"table '{table}' has no schema and is therefore ambiguous; write it with one of: {self._schemas()}",
                code="UNQUALIFIED",
            )

    def _check_function(self, names: Names) -> None:
        *schema, function = names
        if schema not in ([], ["pg_catalog"]) or function not in ALLOWED_FUNCTIONS:
            raise _function_refused(".".join(names))

    def _check_operator(self, names: Names) -> None:
        self._check_home("operator", names, {"pg_catalog"})

    def _check_type(self, type_name: pb.TypeName) -> None:
        names = _names(type_name.names)
        self._check_home("type", names, {"pg_catalog", *self.allowed_schemas})
        if type_name.setof or type_name.pct_type:
            raise _unknown_node("TypeName with SETOF or %TYPE")
        # An array type has its own name with a leading underscore.
        if names[:-1] in ([], ["pg_catalog"]) and names[-1].lstrip("_").startswith(CATALOG_TYPE_PREFIXES):
            raise ConfigError(
                f"TypeName '{names[-1]}' is not allowed because it reads the system catalog; use an ordinary type",
                code="NODE",
            )

    def _check_home(self, kind: str, names: Names, schemas: Collection[str]) -> None:
        """A name without schema resolves to pg_catalog only: that is the search path of every source connection."""
        if len(names) > 2 or (len(names) == 2 and names[0] not in schemas):
            raise ConfigError(
                f"{kind} '{'.'.join(names)}' is outside the allowed schemas; "
                f"use one from: {', '.join(sorted(schemas)) or 'none is allowed'}",
                code="SCHEMA",
            )

    def _check_parameter(self, number: int) -> None:
        if number != 1:
            raise ConfigError(
                f"parameter ${number} has no value; the only parameter is $1, the checkpoint", code="PARAM"
            )
        self.uses_checkpoint = True

    def _schemas(self) -> str:
        return ", ".join(sorted(self.allowed_schemas)) or "none is allowed"

    # PostgreSQL reads x.f as f(x) if x has no column f. Hardly any function accepts a row of a table, but the alias of
    # a function in FROM is a scalar value: SELECT x.pg_sleep FROM generate_series(1, 1) x does sleep.

    def _note_column(self, names: Names) -> None:
        if len(names) > 1:
            self.qualified_columns.append((names[-2], names[-1]))

    def _note_function_columns(self, source: pb.RangeFunction) -> None:
        declared = {*_names(source.alias.colnames), *(column.column_def.colname for column in source.coldeflist)}
        functions: Names = []
        for entry in source.functions:
            call, *columns = entry.list.items
            if call.WhichOneof("node") != "func_call":
                raise _unknown_node(f"RangeFunction with {next(_children(call)).DESCRIPTOR.name}")
            declared.update(column.column_def.colname for group in columns for column in group.list.items)
            functions += _names(call.func_call.funcname)[-1:]
        for alias in [source.alias.aliasname] if source.HasField("alias") else functions:
            # The same alias may occur twice: only a name that is a column in both places is certainly a column.
            self.function_columns[alias] = self.function_columns.get(alias, frozenset(declared)) & declared

    def _check_columns_of_functions(self) -> None:
        for alias, column in self.qualified_columns:
            columns = self.function_columns.get(alias)
            if column.startswith("pg_") or (columns is not None and column not in columns | BUILT_IN_COLUMNS | {""}):
                raise _hidden_call(f"{alias}.{column}")


def _bind(text: str, literal: str | None, type_name: str) -> str:
    tree = _parse(text)
    value = pb.TypeCast(type_name=_parse_type(type_name))
    if literal is None:
        value.arg.a_const.isnull = True
    else:
        value.arg.a_const.sval.sval = literal
    for node in list(_descend(tree)):
        if isinstance(node, pb.Node) and node.WhichOneof("node") == "param_ref":
            node.type_cast.CopyFrom(value)
    return _deparse(tree)


def _parse_type(type_name: str) -> pb.TypeName:
    tree, expected = _parse(f"SELECT NULL::{type_name}"), _parse("SELECT NULL::text")
    found = _first_target(tree).type_cast.type_name
    _first_target(expected).type_cast.type_name.CopyFrom(found)
    if not found.names or _without_positions(tree) != _without_positions(expected):
        raise ConfigError(
            f"{type_name!r} is not the name of a type; give one that format_type() returns", code="SYNTAX"
        )
    return found


def _first_target(tree: pb.ParseResult) -> pb.Node:
    return tree.stmts[0].stmt.select_stmt.target_list[0].res_target.val


def _parse(sql: str) -> pb.ParseResult:
    try:
        return postgast.parse(sql)
    except UnicodeEncodeError as exc:
        raise ConfigError("the query is not valid Unicode text; remove the broken character", code="SYNTAX") from exc
    except postgast.PgQueryError as exc:
        # Bison and PostgreSQL's own stack check report exhaustion, not a syntax error.
        if "memory exhausted" in exc.message or "stack depth" in exc.message:
            raise _too_complex("is nested too deeply") from exc
        raise ConfigError(f"the query is not valid PostgreSQL: {exc.message}; correct it", code="SYNTAX") from exc
    except (DecodeError, RecursionError) as exc:
        raise _too_complex("is nested too deeply") from exc


def _deparse(tree: pb.ParseResult) -> str:
    """The text of the tree; refused unless parsing it again gives the same tree."""
    try:
        text = postgast.deparse(tree)
        faithful = _without_positions(_parse(text)) == _without_positions(tree)
    except (postgast.PgQueryError, EncodeError, RecursionError) as exc:
        raise _too_complex("cannot be written back as text") from exc
    if not faithful:
        raise _too_complex("changes its meaning when written back as text")
    return text


def _on_deep_stack(work: Callable[[], Result]) -> Result:
    """Run `work` on a large stack, so that hostile nesting causes a parser error and not a crash of the process."""
    return _parser_thread().submit(work).result()


@cache
def _parser_thread() -> ThreadPoolExecutor:
    """One thread for the life of the process; its stack is address space, and only the depth in use takes memory."""
    threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="parser")
    # The stack size is a setting of the whole process, read when a thread starts.
    with _stack_size_lock:
        previous = threading.stack_size(PARSER_STACK_BYTES)
        try:
            threads.submit(int).result()
        finally:
            threading.stack_size(previous)
    return threads


def _children(node: Message) -> Iterator[Message]:
    for field, value in node.ListFields():
        if field.message_type is not None:
            yield from value if field.is_repeated else (value,)


def _descend(root: Message) -> Iterator[Message]:
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(_children(node))


def _without_positions(tree: pb.ParseResult) -> pb.ParseResult:
    """The same tree, changed in place: positions in the text have no meaning."""
    for node in _descend(tree):
        for field, _ in node.ListFields():
            if field.name in POSITIONS:
                node.ClearField(field.name)
    return tree


def _names(nodes: Collection[pb.Node]) -> Names:
    return [node.string.sval for node in nodes]


def _too_complex(what: str) -> ConfigError:
    return ConfigError(f"the query {what}; split it or simplify it", code="TOO_COMPLEX")


def _unknown_node(kind: str) -> ConfigError:
    return ConfigError(f"{kind} is not allowed in a source query; {GUIDE} lists what is", code="NODE")


def _function_refused(name: str) -> ConfigError:
    return ConfigError(
        f"function '{name}' is not on the list of allowed functions; choose one from {GUIDE}", code="FUNC"
    )


def _hidden_call(expression: str) -> ConfigError:
    return ConfigError(
        f"'{expression}' may be read as a function call instead of a column; "
        f"name the column in FROM, as in jsonb_each(x) AS e(key, value), and see {GUIDE}",
        code="FUNC",
    )
