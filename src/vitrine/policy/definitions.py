"""The inspection of what a source's owner defined: views, function bodies, policies, constraints of domains.

PostgreSQL writes these texts from its own trees: every name outside pg_catalog has its schema, and `x.f` is never a
call. What the text cannot show, an implicit cast for example, the catalog's dependencies do.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from google.protobuf.message import Message
from postgast import pg_query_pb2 as pb

from vitrine.errors import ConfigError
from vitrine.policy.functions import ALLOWED_FUNCTIONS, SESSION_FUNCTIONS, Call
from vitrine.policy.inspection import Inspection, function_refused
from vitrine.policy.syntax import Names, check_text, on_deep_stack, parse

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
