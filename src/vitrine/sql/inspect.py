"""The inspection of syntax trees: of a query node by node, and of what a source's owner defined."""

from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import NamedTuple

from google.protobuf.message import Message
from postgast import pg_query_pb2 as pb

from vitrine.errors import ConfigError, Place
from vitrine.sql.functions import ALLOWED_FUNCTIONS, SESSION_FUNCTIONS, Call, check_size, why_refused
from vitrine.sql.parse import (
    Names,
    check_text,
    check_time,
    children,
    location_of,
    names_of,
    on_deep_stack,
    parse,
    too_complex,
)

GUIDE = "docs/source-sql.md"

MAX_NODES = 50_000
MAX_WITH_NAMES = 200
MAX_RELATIONS = 300
# protobuf reads at most 100 nested messages; the difference is reserved for the literal that replaces $1.
MAX_DEPTH = 90

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

ROW_BUILDERS = frozenset(
    {"json_populate_record", "json_populate_recordset", "jsonb_populate_record", "jsonb_populate_recordset"}
)

# Columns that a function in FROM has without declaring them; no function has one of these names.
BUILT_IN_COLUMNS = frozenset({"key", "value", "ordinality"})


class Inspection:
    """One pass over a query, deny by default; records what the query reads."""

    def __init__(
        self, allowed_schemas: Collection[str], text: str | None = None, listed: Collection[Call] = ()
    ) -> None:
        self.allowed_schemas = allowed_schemas
        self.functions: set[Call] = set()  # of the source: what they do is inspected there
        self._listed = listed  # functions that an administrator added
        self._text = text  # what the user typed, for places; None: not a text of the user
        self.relations: set[tuple[str, str]] = set()
        self.types: set[tuple[str, str]] = set()
        self.uses_checkpoint = False
        self.with_names = 0
        self._relations_seen = 0
        self.function_columns: dict[str, frozenset[str]] = {}  # by the alias of a function in FROM
        self.qualified_columns: list[pb.ColumnRef] = []

    def inspect(self, statement: Message) -> None:
        # A list instead of recursion: the user controls the depth of the tree, and Python's stack is limited.
        pending: list[tuple[Message, frozenset[str], int]] = [(statement, frozenset(), 1)]
        seen = 0
        while pending:
            node, with_names, depth = pending.pop()
            seen += 1
            check_time(seen)
            if depth > MAX_DEPTH or seen > MAX_NODES:
                raise too_complex("is nested too deeply" if depth > MAX_DEPTH else "has too many parts")
            try:
                self._check(node, with_names)
            except ConfigError as refused:
                raise self._placed(refused, node) from refused
            children = list(self._children_in_scope(node, with_names))
            pending.extend((child, scope, depth + 1) for child, scope in reversed(children))
        self._check_columns_of_functions()

    def _placed(self, refused: ConfigError, node: Message) -> ConfigError:
        location = location_of(node)
        if self._text is None or location is None:
            return refused
        return ConfigError(str(refused), code=refused.code, place=Place.at_byte(self._text, location))

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
                raise too_complex(f"has more than {MAX_WITH_NAMES} WITH queries")
            inner = scope.union(query.common_table_expr.ctename for query in node.with_clause.ctes)
        for child in children(node):
            yield child, scope if isinstance(child, pb.WithClause) else inner

    def _check(self, node: Message, with_names: frozenset[str]) -> None:
        match node:
            case pb.ColumnRef():
                self._note_column(node)
            case pb.FuncCall():
                self._check_function(names_of(node.funcname), len(node.args))
                self._check_row_type(node)
                self._check_size(node)
            case pb.A_Expr():
                self._check_operator(names_of(node.name))
            case pb.SubLink():
                self._check_operator(names_of(node.oper_name))
            case pb.SortBy():
                self._check_operator(names_of(node.use_op))
            case pb.TypeName():
                self._check_type(node)
            case pb.CollateClause():
                self._check_collation(names_of(node.collname))
            case pb.ParamRef():
                self._check_parameter(node.number)
            case pb.SQLValueFunction():
                self._check_value_function(node.op)
            case pb.A_Indirection():
                self._check_fields(names_of(node.indirection))
            case pb.RangeVar():
                self._check_relation(node, with_names)
            case pb.RangeFunction():
                self._note_function_columns(node)
            case pb.WithClause():
                if node.recursive:
                    raise unknown_node("WithClause RECURSIVE")
            case pb.IntoClause():
                raise ConfigError("INTO creates a table, and a source only reads; remove it", code="INTO")
            case pb.LockingClause():
                raise ConfigError("FOR UPDATE or FOR SHARE locks rows of the source; remove it", code="LOCKING")
            case _:
                if type(node) not in KNOWN_NODES:
                    raise unknown_node(node.DESCRIPTOR.name)

    def _check_relation(self, relation: pb.RangeVar, with_names: frozenset[str]) -> None:
        table, schema = relation.relname, relation.schemaname
        self._count_relation()
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

    def _count_relation(self) -> None:
        self._relations_seen += 1
        if self._relations_seen > MAX_RELATIONS:
            raise too_complex(f"names more than {MAX_RELATIONS} relations")

    def _check_function(self, names: Names, arguments: int) -> None:
        *schemas, function = names
        schema = ".".join(schemas) or "pg_catalog"
        call = schema, function, arguments
        if schema == "pg_catalog":
            allowed = function in ALLOWED_FUNCTIONS or call in self._listed
        else:
            allowed = call in self._listed or (schema in self.allowed_schemas and len(schemas) == 1)
            self.functions.add(call)
        if not allowed:
            raise function_refused(".".join(names))

    def _check_size(self, call: pb.FuncCall) -> None:
        check_size(call)

    def _check_row_type(self, call: pb.FuncCall) -> None:
        """A function that builds a row executes the constraints of its type, which must therefore have a name."""
        name = names_of(call.funcname)[-1]
        if name in ROW_BUILDERS and (not call.args or call.args[0].WhichOneof("node") != "type_cast"):
            raise ConfigError(
                f"the row that {name} fills has no named type; write its first argument as NULL::schema.type, and see"
                f" {GUIDE}",
                code="FUNC",
            )

    def _check_value_function(self, operation: pb.SQLValueFunctionOp) -> None:
        if operation not in CLOCKS:
            raise function_refused(pb.SQLValueFunctionOp.Name(operation).removeprefix("SVFOP_").lower())

    def _check_operator(self, names: Names) -> None:
        self._check_home("operator", names, {"pg_catalog"})

    def _check_collation(self, names: Names) -> None:
        self._check_home("collation", names, {"pg_catalog"})

    def _check_type(self, type_name: pb.TypeName) -> None:
        names = names_of(type_name.names)
        self._check_home_of_type(names)
        if names[:-1] not in ([], ["pg_catalog"]):
            self.types.add((names[-2], names[-1]))
        if type_name.setof or type_name.pct_type:
            raise unknown_node("TypeName with SETOF or %TYPE")
        # An array type has its own name with a leading underscore.
        if names[:-1] in ([], ["pg_catalog"]) and names[-1].lstrip("_").startswith(CATALOG_TYPE_PREFIXES):
            raise ConfigError(
                f"TypeName '{names[-1]}' is not allowed because it reads the system catalog; use an ordinary type",
                code="NODE",
            )

    def _check_home_of_type(self, names: Names) -> None:
        self._check_home("type", names, {"pg_catalog", *self.allowed_schemas})

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

    def _check_fields(self, names: Names) -> None:
        for field in filter(None, names):
            raise hidden_call(f"(…).{field}")

    def _note_column(self, column: pb.ColumnRef) -> None:
        if len(column.fields) > 1:
            self.qualified_columns.append(column)

    def _note_function_columns(self, source: pb.RangeFunction) -> None:
        declared = {*names_of(source.alias.colnames), *(column.column_def.colname for column in source.coldeflist)}
        functions: Names = []
        for entry in source.functions:
            call, *columns = entry.list.items
            if call.WhichOneof("node") != "func_call":
                raise unknown_node(f"RangeFunction with {next(children(call)).DESCRIPTOR.name}")
            declared.update(column.column_def.colname for group in columns for column in group.list.items)
            functions += names_of(call.func_call.funcname)[-1:]
        for alias in [source.alias.aliasname] if source.HasField("alias") else functions:
            # The same alias may occur twice: only a name that is a column in both places is certainly a column.
            self.function_columns[alias] = self.function_columns.get(alias, frozenset(declared)) & declared

    def _check_columns_of_functions(self) -> None:
        for node in self.qualified_columns:
            alias, column = names_of(node.fields)[-2:]
            columns = self.function_columns.get(alias)
            if column.startswith("pg_") or (columns is not None and column not in columns | BUILT_IN_COLUMNS | {""}):
                raise self._placed(hidden_call(f"{alias}.{column}"), node)


def unknown_node(kind: str) -> ConfigError:
    return ConfigError(f"{kind} is not allowed in a source query; {GUIDE} lists what is", code="NODE")


def function_refused(name: str) -> ConfigError:
    return ConfigError(why_refused(name, GUIDE), code="FUNC")


def hidden_call(expression: str) -> ConfigError:
    return ConfigError(
        f"'{expression}' may be read as a function call instead of a column; "
        f"name the column in FROM, as in jsonb_each(x) AS e(key, value), and see {GUIDE}",
        code="FUNC",
    )


# PostgreSQL writes these texts from its own trees: every name outside pg_catalog has its schema, and `x.f` is never a
# call. What the text cannot show, an implicit cast for example, the catalog's dependencies do.
Name = tuple[str, str]

BODY_PREFIX = "CREATE FUNCTION body() RETURNS void LANGUAGE sql "
"""Before a body in SQL, which is no statement by itself."""


class Approved(NamedTuple):
    """Names that the caller checks by their identity in the catalog."""

    functions: frozenset[Name] = frozenset()
    operators: frozenset[Name] = frozenset()
    session: bool = False  # whether the text may ask for the current user and for settings, as policies do
    listed: frozenset[Call] = frozenset()  # functions that an administrator added


class Named(NamedTuple):
    """What a definition names; a relation without schema belongs to pg_catalog."""

    relations: frozenset[Name]
    types: frozenset[Name]


def inspect_definition(text: str, approved: Approved) -> Named:
    """What a definition reads; ConfigError if it contains anything that a source query may not contain either."""
    check_text(text)
    return _inspect_cached(text, approved)


@lru_cache(maxsize=512)
def _inspect_cached(text: str, approved: Approved) -> Named:
    # a definition is inspected again for every snapshot; the answer depends on nothing else
    return on_deep_stack(lambda: _inspect(text, approved))


def _inspect(text: str, approved: Approved) -> Named:
    inspection = _DefinitionInspection(approved)
    for statement in _statements(parse(text)):
        inspection.inspect(statement)
    return Named(frozenset(inspection.relations), frozenset(inspection.types))


def _statements(tree: pb.ParseResult) -> Iterator[Message]:
    if len(tree.stmts) != 1:
        raise ConfigError("the definition is not one statement; write one SELECT", code="MULTIPLE_STATEMENTS")
    statement = tree.stmts[0].stmt
    if statement.WhichOneof("node") != "create_function_stmt":
        yield statement
        return
    body = statement.create_function_stmt.sql_body
    if body.WhichOneof("node") == "return_stmt":
        yield body.return_stmt.returnval
        return
    for block in body.list.items:
        yield from block.list.items


class _DefinitionInspection(Inspection):
    """One pass over a definition; schemas of relations and types are judged by the caller, who knows the way there."""

    def __init__(self, approved: Approved) -> None:
        super().__init__((), listed=approved.listed)
        self._approved = approved
        self._functions = ALLOWED_FUNCTIONS | SESSION_FUNCTIONS if approved.session else ALLOWED_FUNCTIONS

    def _check_relation(self, relation: pb.RangeVar, with_names: frozenset[str]) -> None:
        if relation.schemaname or relation.relname not in with_names:
            self.relations.add((relation.schemaname or "pg_catalog", relation.relname))

    def _check_function(self, names: Names, arguments: int) -> None:
        *schema, function = names
        if schema in ([], ["pg_catalog"]):
            allowed = function in self._functions or ("pg_catalog", function, arguments) in self._approved.listed
        else:
            allowed = (".".join(schema), function) in self._approved.functions
        if not allowed:
            raise function_refused(".".join(names))

    def _check_size(self, call: pb.FuncCall) -> None:
        """The owner of the source decides what its own definitions cost."""

    def _check_value_function(self, operation: pb.SQLValueFunctionOp) -> None:
        if not self._approved.session:
            super()._check_value_function(operation)

    def _check_operator(self, names: Names) -> None:
        if tuple(names) not in self._approved.operators:
            super()._check_operator(names)

    def _check_collation(self, names: Names) -> None:
        """A collation only compares."""

    def _check_home_of_type(self, names: Names) -> None:
        """Any schema: the caller inspects what the type executes."""

    def _check_parameter(self, number: int) -> None:
        """An argument of the function; a view has none."""

    def _check_fields(self, names: Names) -> None:
        """PostgreSQL writes a call as a call."""

    def _note_column(self, column: pb.ColumnRef) -> None:
        """PostgreSQL writes a call as a call."""

    def _note_function_columns(self, source: pb.RangeFunction) -> None:
        """PostgreSQL writes a call as a call."""
