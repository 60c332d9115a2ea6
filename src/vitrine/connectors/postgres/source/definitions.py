"""Walks from relations to everything that PostgreSQL executes when they are read, and inspects each definition.

Built-in functions have no dependencies in the catalog, so the text of every definition is inspected. An implicit cast
has no text, so every dependency is followed as well.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, LiteralString, NamedTuple

from psycopg.rows import DictRow

from vitrine import policy
from vitrine.connectors.postgres.source import catalog
from vitrine.errors import ConfigError
from vitrine.policy import Approved, Call
from vitrine.postgres import Connection

Name = tuple[str, str]

RELATION, FUNCTION, OPERATOR, TYPE = "pg_class", "pg_proc", "pg_operator", "pg_type"

_GUIDE = "docs/source-sql.md"

_VERBS = {RELATION: "reads", FUNCTION: "calls", OPERATOR: "uses operator", TYPE: "uses type"}


@dataclass(frozen=True)
class Way:
    """How the query leads to an object, from the first relation or type that it names."""

    start: str
    steps: tuple[str, ...] = ()
    relation: str | None = None  # the first relation on the way, which an administrator may allow
    role: str | None = None  # whose rights apply here; None: those of the reader

    def then(self, kind: str, name: str) -> "Way":
        return replace(
            self,
            steps=(*self.steps, f"{_VERBS[kind]} {name}"),
            relation=self.relation or (name if kind == RELATION else None),
        )

    def __str__(self) -> str:
        return f"{self.start} {', which '.join(self.steps)}" if self.steps else self.start

    def refusal(self, reason: str, code: str, remedy: str = "") -> ConfigError:
        allowed = f"list {self.relation} in VITRINE_ALLOWED_RELATIONS if its definition is to be trusted"
        remedies = "; or ".join(filter(None, (remedy, allowed if self.relation else "")))
        return ConfigError(f"source query: {self}{reason}; {remedies or f'see {_GUIDE}'}", code=code)


class Rules(NamedTuple):
    """What a query may lead to."""

    schemas: frozenset[str]
    relations: frozenset[str]  # schema.name, allowed with everything behind them
    functions: frozenset[Call]  # that an administrator allowed
    respect: bool  # row-level security applies, so its policies are executed


class _Definition(NamedTuple):
    """A text that PostgreSQL executes, and the object whose dependencies are those of the text."""

    text: str
    way: Way
    identity: tuple[int, int]
    session: bool


class Walk:
    """One walk, level by level, from the relations and types that a query names."""

    def __init__(self, connection: Connection, rules: Rules) -> None:
        self.kinds: dict[str, str] = {}  # of the relations reached, by schema.name
        self.guarded: dict[str, Way] = {}  # tables with row-level security
        self._connection = connection
        self._rules = rules
        self._pending: dict[tuple[str, int], Way] = {}
        self._seen: set[tuple[str, int]] = set()

    def start(self, relations: Iterable[Name], types: Iterable[Name], functions: Iterable[Call]) -> Sequence[DictRow]:
        """What the query itself names; returns the rows of its relations in the catalog."""
        found = self._read(catalog.RELATIONS, **_names(relations), oids=[])
        for row in found:
            name = _full_name(row)
            self._pending[RELATION, row["oid"]] = Way(name, relation=name)
        self._push_named_types({(schema, name): Way(f"{schema}.{name}") for schema, name in types})
        self._push_called(functions)
        if not any(kind != RELATION for kind, _ in self._pending) and all(map(self._is_plain, found)):
            self._pending.clear()
        return found

    def _push_called(self, functions: Iterable[Call]) -> None:
        """Every function that a call of the query may mean: which one it means, the types of its arguments decide."""
        calls = sorted(set(functions) - self._rules.functions)
        known = self._read(catalog.CALLED, **_names({call[:2] for call in calls})) if calls else []
        for schema, name, arguments in calls:
            found = [
                row["oid"]
                for row in known
                if (row["schema"], row["name"]) == (schema, name) and row["fewest"] <= arguments <= row["most"]
            ]
            if not found:
                raise ConfigError(
                    f"source query: there is no function {schema}.{name} with {arguments} argument(s); see {_GUIDE}",
                    code="FUNC",
                )
            for oid in found:
                self._push(FUNCTION, oid, Way("the query"))

    def _is_plain(self, row: DictRow) -> bool:
        """Reading a plain table executes nothing that its owner defined."""
        self._note(row, Way(_full_name(row)))
        is_quiet = not (row["is_computed"] or row["foreign_tables"] or row["types_call"])
        return row["kind"] in ("r", "p") and is_quiet and not (row["row_security"] and self._rules.respect)

    def run(self) -> None:
        """Follow everything; ConfigError names the way to what is refused."""
        while self._pending:
            level, self._pending = self._pending, {}
            self._seen |= level.keys()
            self._operators(_of_kind(OPERATOR, level))
            definitions = [
                *self._relations(_of_kind(RELATION, level)),
                *self._functions(_of_kind(FUNCTION, level)),
                *self._types(_of_kind(TYPE, level)),
            ]
            self._inspect(definitions)

    def _push(self, kind: str, oid: int, way: Way) -> None:
        if (kind, oid) not in self._seen:
            self._pending.setdefault((kind, oid), way)

    # -- objects --------------------------------------------------------------------------------------------------

    def _relations(self, ways: Mapping[int, Way]) -> list[_Definition]:
        if not ways:
            return []
        inner: dict[int, Way] = {}
        types_call = False
        for row in self._read(catalog.RELATIONS, schemas=[], names=[], oids=list(ways)):
            types_call = row["types_call"]
            name, way = _full_name(row), ways[row["oid"]]
            if name != way.start:
                way = way.then(RELATION, name)
            self._note(row, way)
            if row["kind"] == "c":
                self._push(TYPE, row["row_type"], way)
            elif name not in self._rules.relations:
                self._admit(row["schema"], way)
                self._refuse_foreign(row, way)
                inner[row["oid"]] = way if row["kind"] != "v" else replace(way, role=_reader(row, row["invoker"]))
        self._push_type_functions(inner, types_call=types_call)
        found = self._read(catalog.RELATION_DEFINITIONS, oids=list(inner), respect=self._rules.respect) if inner else []
        return [_definition(row, inner[row["owner"]]) for row in found]

    def _push_type_functions(self, ways: Mapping[int, Way], *, types_call: bool) -> None:
        for row in self._read(catalog.TYPE_FUNCTIONS, oids=list(ways)) if types_call else ():
            self._push(FUNCTION, row["function"], ways[row["relation"]].then(TYPE, row["type"]))

    def _note(self, row: DictRow, way: Way) -> None:
        self.kinds[_full_name(row)] = row["kind"]
        if row["row_security"]:
            self.guarded.setdefault(_full_name(row), way)

    def _admit(self, schema: str, way: Way) -> None:
        if schema not in self._rules.schemas:
            allowed = ", ".join(sorted(self._rules.schemas)) or "none is allowed"
            raise way.refusal(f", but only these schemas may be read: {allowed}", "SCHEMA", "let it read only those")

    def _refuse_foreign(self, row: DictRow, way: Way) -> None:
        for name in row["foreign_tables"]:
            if name not in self._rules.relations:
                reached = way if name == _full_name(row) else way.then(RELATION, name)
                raise replace(reached, relation=name).refusal(
                    ", a foreign table, whose rows another server returns", "FOREIGN_TABLE", "read a local table"
                )

    def _functions(self, ways: Mapping[int, Way]) -> list[_Definition]:
        if not ways:
            return []
        definitions: list[_Definition] = []
        for row in self._read(catalog.FUNCTIONS, oids=list(ways)):
            way = ways[row["oid"]].then(FUNCTION, row["signature"])
            if policy.is_listed(self._rules.functions, row["schema"], row["name"], row["fewest"], row["most"]):
                continue
            if row["kind"] != "f" or row["body"] is None:
                raise way.refusal(
                    ", which may do anything: only a function in SQL with BEGIN ATOMIC can be checked",
                    "FUNC",
                    "write it so, or ask an administrator to add it to VITRINE_ALLOWED_FUNCTIONS",
                )
            if any(not setting.startswith("search_path=") for setting in row["settings"]):
                raise way.refusal(", which changes settings of the session", "FUNC", "remove SET from the function")
            inner = replace(way, role=row["owner"]) if row["definer"] else way
            for text in filter(None, (policy.BODY_PREFIX + row["body"], row["defaults"])):
                definitions.append(_Definition(text, inner, (row["class"], row["oid"]), session=False))
        return definitions

    def _operators(self, ways: Mapping[int, Way]) -> None:
        for row in self._read(catalog.OPERATORS, oids=list(ways)) if ways else ():
            way = ways[row["oid"]].then(OPERATOR, row["signature"])
            if row["trusted"]:
                continue
            if not row["built_in"]:
                self._push(FUNCTION, row["function"], way)
            elif row["function_name"] not in policy.ALLOWED_FUNCTIONS:
                raise way.refusal(f", which calls {row['function_name']}", "FUNC", "use an operator of PostgreSQL")

    def _types(self, ways: Mapping[int, Way]) -> list[_Definition]:
        if not ways:
            return []
        inner: dict[int, Way] = {}
        for row in self._read(catalog.TYPES, oids=list(ways)):
            way = ways[row["oid"]]
            inner[row["oid"]] = way = way if not way.steps and way.relation is None else way.then(TYPE, row["name"])
            for part in row["parts"]:
                self._push(TYPE, part, way)
            for function in row["functions"]:
                self._push(FUNCTION, function, way)
        return [_definition(row, inner[row["owner"]]) for row in self._read(catalog.TYPE_DEFINITIONS, oids=list(inner))]

    def _push_named_types(self, ways: Mapping[Name, Way]) -> None:
        for row in self._read(catalog.NAMED_TYPES, **_names(ways)) if ways else ():
            self._push(TYPE, row["oid"], ways[row["schema"], row["name"]])

    # -- definitions ----------------------------------------------------------------------------------------------

    def _inspect(self, definitions: Sequence[_Definition]) -> None:
        if not definitions:
            return
        classes, objects = zip(*(one.identity for one in definitions), strict=True)
        dependencies = self._read(catalog.DEPENDENCIES, classes=list(classes), objects=list(objects))
        types: dict[Name, Way] = {}
        for one in definitions:
            its = [row for row in dependencies if (row["class"], row["object"]) == one.identity]
            named = _inspected(one, its, self._rules.functions)
            for schema, name in sorted(named.relations):
                if f"{schema}.{name}" not in self._rules.relations:
                    self._admit(schema, one.way.then(RELATION, f"{schema}.{name}"))
            for row in its:
                self._push(row["kind"], row["oid"], one.way)
            types |= {name: one.way for name in named.types if name not in types}
        self._push_named_types(types)

    def _read(self, statement: LiteralString, **arguments: Any) -> list[DictRow]:
        return self._connection.execute(statement, arguments).fetchall()


def _inspected(definition: _Definition, dependencies: Sequence[DictRow], listed: frozenset[Call]) -> policy.Named:
    def names(kind: str) -> frozenset[Name]:
        return frozenset((row["schema"], row["name"]) for row in dependencies if row["kind"] == kind)

    try:
        approved = Approved(names(FUNCTION), names(OPERATOR), definition.session, listed)
        return policy.inspect_definition(definition.text, approved)
    except ConfigError as exc:
        reason, _, remedy = str(exc).partition("; ")
        raise definition.way.refusal(f": {reason}", exc.code, remedy) from exc


def _definition(row: DictRow, way: Way) -> _Definition:
    return _Definition(row["text"], way, (row["class"], row["object"]), row["session"])


def _of_kind(kind: str, level: Mapping[tuple[str, int], Way]) -> dict[int, Way]:
    return {oid: way for (one, oid), way in level.items() if one == kind}


def _reader(row: DictRow, invoker: bool) -> str | None:
    return None if invoker else row["owner"]


def _full_name(row: DictRow) -> str:
    return f"{row['schema']}.{row['name']}"


def _names(names: Iterable[Name]) -> dict[str, list[str]]:
    listed = sorted(names)
    return {"schemas": [schema for schema, _ in listed], "names": [name for _, name in listed]}
