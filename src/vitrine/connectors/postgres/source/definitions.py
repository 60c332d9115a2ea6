"""Walks from relations to everything that PostgreSQL executes when they are read, and inspects each part."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, LiteralString, NamedTuple

from psycopg.rows import DictRow

from vitrine.errors import ConfigError
from vitrine.postgres import Connection
from vitrine.sql import functions, inspect
from vitrine.sql.functions import Call
from vitrine.sql.inspect import Approved

# The relations that are tables without anything that reading them would execute or hide, nor children: most queries
# read no others, and this answer is faster than the following ones
PLAIN = """
    SELECT count(*) AS tables FROM pg_class c
     WHERE c.oid = ANY ({}::regclass[]) AND c.relkind = 'r' AND NOT c.relhassubclass AND NOT c.relrowsecurity
       AND NOT EXISTS (SELECT FROM pg_attribute a
                        WHERE a.attrelid = c.oid AND (a.attgenerated = 'v' OR a.atttypid >= 16384))
"""

# Reading a table reads its partitions and children, in whatever schema: the owner of the table attached them.
RELATIONS = """
    WITH RECURSIVE wanted AS (
        SELECT c.oid FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS a (schema, name)
          JOIN pg_namespace n ON n.nspname = a.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = a.name
         UNION
        SELECT unnest(%(oids)s::oid[])
    ), members AS (
        SELECT oid AS root, oid FROM wanted
         UNION
        SELECT m.root, i.inhrelid FROM members m JOIN pg_inherits i ON i.inhparent = m.oid
    )
    SELECT c.oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind, c.reltype AS row_type,
           pg_get_userbyid(c.relowner) AS owner,
           coalesce(c.reloptions && '{security_invoker=true,security_invoker=on,security_invoker=1}', false) AS invoker,
           c.relrowsecurity AS row_security, row_security_active(c.oid) AS limited,
           EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated = 'v') AS is_computed,
           ARRAY(SELECT format('%%s.%%s', s.nspname, f.relname) FROM members m JOIN pg_class f ON f.oid = m.oid
                   JOIN pg_namespace s ON s.oid = f.relnamespace
                  WHERE m.root = c.oid AND f.relkind = 'f' ORDER BY 1) AS foreign_tables,
           EXISTS (SELECT FROM pg_cast k WHERE k.castfunc >= 16384)
           OR EXISTS (SELECT FROM pg_range g WHERE g.rngsubdiff >= 16384 OR g.rngcanonical >= 16384) AS types_call
      FROM wanted w JOIN pg_class c ON c.oid = w.oid JOIN pg_namespace n ON n.oid = c.relnamespace
     ORDER BY schema, name
"""

RELATION_DEFINITIONS = """
    SELECT r.ev_class AS owner, r.tableoid AS class, r.oid AS object,
           pg_get_viewdef(r.ev_class) AS text, false AS session
      FROM pg_rewrite r WHERE r.ev_class = ANY (%(oids)s::oid[]) AND r.rulename = '_RETURN'
     UNION ALL
    SELECT d.adrelid, d.tableoid, d.oid, 'SELECT ' || pg_get_expr(d.adbin, d.adrelid), false
      FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
     WHERE d.adrelid = ANY (%(oids)s::oid[]) AND a.attgenerated = 'v'
     UNION ALL
    SELECT p.polrelid, p.tableoid, p.oid, 'SELECT ' || pg_get_expr(p.polqual, p.polrelid), true
      FROM pg_policy p WHERE p.polrelid = ANY (%(oids)s::oid[]) AND p.polcmd IN ('r', '*') AND p.polqual IS NOT NULL
                         AND %(respect)s
"""

# Executed without being named: functions that cast a value of a relation from or to another type, which operators,
# to_jsonb and others do, and those of a range type, one of which the planner calls to estimate a condition. Those of an
# extension are a superuser's.
TYPE_FUNCTIONS = """
    WITH RECURSIVE made_of AS (
        SELECT a.attrelid AS relation, a.atttypid AS type FROM pg_attribute a
         WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0 AND a.atttypid >= 16384
         UNION
        SELECT m.relation, p.part FROM made_of m JOIN pg_type t ON t.oid = m.type CROSS JOIN LATERAL (
            SELECT unnest(ARRAY[t.typbasetype, t.typelem])
             UNION ALL
            SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0
             UNION ALL
            SELECT unnest(ARRAY[g.rngtypid, g.rngsubtype]) FROM pg_range g WHERE t.oid IN (g.rngtypid, g.rngmultitypid)
        ) AS p (part) WHERE p.part >= 16384
    ), attached AS (
        SELECT m.relation, m.type, k.castfunc::oid AS function
          FROM made_of m JOIN pg_cast k ON m.type IN (k.castsource, k.casttarget)
         UNION
        SELECT m.relation, m.type, unnest(ARRAY[g.rngsubdiff, g.rngcanonical])::oid
          FROM made_of m JOIN pg_range g ON g.rngtypid = m.type
    )
    SELECT a.relation, format_type(a.type, NULL) AS type, a.function
      FROM attached a JOIN pg_proc p ON p.oid = a.function
     WHERE a.function >= 16384
       AND NOT EXISTS (SELECT FROM pg_depend d JOIN pg_roles r ON r.oid = p.proowner AND r.rolsuper
                        WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
"""

# Defaults of arguments are inserted when a call is planned, so they are not in the text of the caller.
# Without the functions that PostgreSQL makes for every range type: their code is its own
FUNCTIONS = """
    SELECT p.tableoid AS class, p.oid, p.oid::regprocedure::text AS signature, p.prokind::text AS kind,
           (SELECT nspname FROM pg_namespace n WHERE n.oid = p.pronamespace) AS schema, p.proname AS name,
           p.pronargs - p.pronargdefaults AS fewest,
           CASE WHEN p.provariadic = 0 THEN p.pronargs ELSE 1000 END AS most,
           p.prosecdef AS definer, pg_get_userbyid(p.proowner) AS owner, pg_get_function_sqlbody(p.oid) AS body,
           'SELECT ' || pg_get_expr(p.proargdefaults, 0) AS defaults, coalesce(p.proconfig, '{}') AS settings
      FROM pg_proc p WHERE p.oid = ANY (%(oids)s::oid[])
       AND NOT (p.prolang = (SELECT oid FROM pg_language WHERE lanname = 'internal') AND p.prosrc IN (
           'range_constructor2', 'range_constructor3',
           'multirange_constructor0', 'multirange_constructor1', 'multirange_constructor2'))
     ORDER BY signature
"""

CALLED = """
    SELECT n.nspname AS schema, p.proname AS name, p.oid, p.pronargs - p.pronargdefaults AS fewest,
           CASE WHEN p.provariadic = 0 THEN p.pronargs ELSE 1000 END AS most
      FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS a (schema, name)
      JOIN pg_namespace n ON n.nspname = a.schema JOIN pg_proc p ON p.pronamespace = n.oid AND p.proname = a.name
"""

# A role may attach any function that it may execute to an operator. Trusted: members of a superuser's extension, and
# functions that are also behind a built-in operator.
OPERATORS = """
    SELECT o.oid, o.oid::regoperator::text AS signature, o.oprcode::oid AS function, p.proname AS function_name,
           p.oid < 16384 AS built_in,
           EXISTS (SELECT FROM pg_operator b WHERE b.oid < 12000 AND b.oprcode = o.oprcode)
           OR EXISTS (SELECT FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
                        JOIN pg_roles r ON r.oid = e.extowner AND r.rolsuper
                       WHERE d.classid = 'pg_operator'::regclass AND d.objid = o.oid AND d.deptype = 'e') AS trusted
      FROM pg_operator o JOIN pg_proc p ON p.oid = o.oprcode WHERE o.oid = ANY (%(oids)s::oid[]) ORDER BY signature
"""

NAMED_TYPES = """
    SELECT n.nspname AS schema, t.typname AS name, t.oid
      FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS a (schema, name)
      JOIN pg_namespace n ON n.nspname = a.schema JOIN pg_type t ON t.typnamespace = n.oid AND t.typname = a.name
"""

# Base type, element, fields and subtype of each type; functions that make a range canonical, that tell the distance of
# its values, and that cast them
TYPES = """
    SELECT t.oid, format_type(t.oid, NULL) AS name,
           ARRAY(SELECT part FROM unnest(ARRAY[t.typbasetype, t.typelem, r.rngsubtype]
                     || ARRAY(SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0)
                 ) AS part WHERE part >= 16384) AS parts,
           ARRAY(SELECT f FROM unnest(ARRAY[r.rngcanonical::oid, r.rngsubdiff::oid]) AS f WHERE f >= 16384)
           || ARRAY(SELECT k.castfunc FROM pg_cast k JOIN pg_proc p ON p.oid = k.castfunc
                     WHERE t.oid IN (k.castsource, k.casttarget) AND k.castfunc >= 16384 AND NOT EXISTS (
                         SELECT FROM pg_depend d JOIN pg_roles o ON o.oid = p.proowner AND o.rolsuper
                          WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')) AS functions
      FROM pg_type t LEFT JOIN pg_range r ON t.oid IN (r.rngtypid, r.rngmultitypid)
     WHERE t.oid = ANY (%(oids)s::oid[]) ORDER BY name
"""

TYPE_DEFINITIONS = """
    SELECT c.contypid AS owner, c.tableoid AS class, c.oid AS object,
           'SELECT ' || pg_get_expr(c.conbin, 0) AS text, false AS session
      FROM pg_constraint c WHERE c.contypid = ANY (%(oids)s::oid[]) AND c.conbin IS NOT NULL
"""

DEPENDENCIES = """
    SELECT DISTINCT d.classid AS class, d.objid AS object, d.refclassid::regclass::text AS kind, d.refobjid AS oid,
           coalesce(pn.nspname, o_n.nspname) AS schema, coalesce(p.proname, o.oprname) AS name
      FROM unnest(%(classes)s::oid[], %(objects)s::oid[]) AS a (class, object)
      JOIN pg_depend d ON d.classid = a.class AND d.objid = a.object
      LEFT JOIN pg_proc p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid
      LEFT JOIN pg_namespace pn ON pn.oid = p.pronamespace
      LEFT JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
      LEFT JOIN pg_namespace o_n ON o_n.oid = o.oprnamespace
     WHERE d.refclassid IN ('pg_class'::regclass, 'pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass)
"""


# Built-in functions have no dependencies in the catalog, so the text of every definition is inspected. An implicit cast
# has no text, so every dependency is followed as well.
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
        found = self._read(RELATIONS, **_names(relations), oids=[])
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
        known = self._read(CALLED, **_names({call[:2] for call in calls})) if calls else []
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
        for row in self._read(RELATIONS, schemas=[], names=[], oids=list(ways)):
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
        found = self._read(RELATION_DEFINITIONS, oids=list(inner), respect=self._rules.respect) if inner else []
        return [_definition(row, inner[row["owner"]]) for row in found]

    def _push_type_functions(self, ways: Mapping[int, Way], *, types_call: bool) -> None:
        for row in self._read(TYPE_FUNCTIONS, oids=list(ways)) if types_call else ():
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
        for row in self._read(FUNCTIONS, oids=list(ways)):
            way = ways[row["oid"]].then(FUNCTION, row["signature"])
            if functions.is_listed(self._rules.functions, row["schema"], row["name"], row["fewest"], row["most"]):
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
            for text in filter(None, (inspect.BODY_PREFIX + row["body"], row["defaults"])):
                definitions.append(_Definition(text, inner, (row["class"], row["oid"]), session=False))
        return definitions

    def _operators(self, ways: Mapping[int, Way]) -> None:
        for row in self._read(OPERATORS, oids=list(ways)) if ways else ():
            way = ways[row["oid"]].then(OPERATOR, row["signature"])
            if row["trusted"]:
                continue
            if not row["built_in"]:
                self._push(FUNCTION, row["function"], way)
            elif row["function_name"] not in functions.ALLOWED_FUNCTIONS:
                raise way.refusal(f", which calls {row['function_name']}", "FUNC", "use an operator of PostgreSQL")

    def _types(self, ways: Mapping[int, Way]) -> list[_Definition]:
        if not ways:
            return []
        inner: dict[int, Way] = {}
        for row in self._read(TYPES, oids=list(ways)):
            way = ways[row["oid"]]
            inner[row["oid"]] = way = way if not way.steps and way.relation is None else way.then(TYPE, row["name"])
            for part in row["parts"]:
                self._push(TYPE, part, way)
            for function in row["functions"]:
                self._push(FUNCTION, function, way)
        return [_definition(row, inner[row["owner"]]) for row in self._read(TYPE_DEFINITIONS, oids=list(inner))]

    def _push_named_types(self, ways: Mapping[Name, Way]) -> None:
        for row in self._read(NAMED_TYPES, **_names(ways)) if ways else ():
            self._push(TYPE, row["oid"], ways[row["schema"], row["name"]])

    # -- definitions ----------------------------------------------------------------------------------------------

    def _inspect(self, definitions: Sequence[_Definition]) -> None:
        if not definitions:
            return
        classes, objects = zip(*(one.identity for one in definitions), strict=True)
        dependencies = self._read(DEPENDENCIES, classes=list(classes), objects=list(objects))
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


def _inspected(definition: _Definition, dependencies: Sequence[DictRow], listed: frozenset[Call]) -> inspect.Named:
    def names(kind: str) -> frozenset[Name]:
        return frozenset((row["schema"], row["name"]) for row in dependencies if row["kind"] == kind)

    try:
        approved = Approved(names(FUNCTION), names(OPERATOR), definition.session, listed)
        return inspect.inspect_definition(definition.text, approved)
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
