"""Types of PostgreSQL: how the values of each are carried, compared and ordered."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from psycopg import sql
from psycopg.rows import DictRow

from vitrine.postgres import Connection, raw

UNSET = -1
"""The modifier of a type without length, scale or precision."""


class Form(StrEnum):
    """How a value becomes the type that carries it, in the session of its own database."""

    SAME = "same"
    CAST = "cast"
    TEXT = "text"
    JSON = "json"


class Operator(NamedTuple):
    """An operator by its full name: a bare one would resolve to that of another type under our search_path."""

    schema: str
    name: str

    def between(self, left: sql.Composable, right: sql.Composable) -> sql.Composed:
        return sql.SQL("{} OPERATOR({}.{}) {}").format(left, sql.Identifier(self.schema), raw(self.name), right)


class TypeFacts(NamedTuple):
    """A type as its database describes it, and the type that carries its values."""

    declared: str  # in its own database, with length or scale; qualified unless it belongs to pg_catalog
    bare: str  # the same without length or scale: a cast to it changes no value
    carrier: str  # the type in a batch and in a created mart
    carrier_oid: int  # how COPY BINARY encodes it
    form: Form
    extension: str | None  # the carrier belongs to this extension; None: to pg_catalog
    # operators of the default btree operator class; None: values of the type have no order
    equal: Operator | None
    greater: Operator | None
    at_least: Operator | None
    send: sql.Identifier | None  # the function that returns the image of a value; None: there is none
    polymorphic: bool  # the operators take any enum, array or range: a domain over one must be cast to it first
    identical: bool  # equal values have equal images, provided that their collation is deterministic
    collatable: bool
    foreign_code: bool  # its owner, who is not a superuser, may have attached functions that a write would execute

    @property
    def is_flattened(self) -> bool:
        return self.form is not Form.SAME

    def carried(self, value: sql.Composable) -> sql.Composable:
        """The value as its carrier, to be evaluated by the reader of its own database."""
        match self.form:
            case Form.SAME:
                return value
            case Form.CAST:
                return sql.SQL("CAST({} AS {})").format(value, raw(self.carrier))
            case Form.TEXT:
                return output_text(value)
            case Form.JSON:
                return sql.SQL("to_jsonb({})").format(value)


def output_text(value: sql.Composable) -> sql.Composed:
    """The text that the type's output function returns: a cast to text may be defined to return another one."""
    return sql.SQL("CASE WHEN {0} IS NOT DISTINCT FROM NULL THEN NULL ELSE concat({0}) END").format(value)


_EQUAL, _GREATER, _AT_LEAST = (Operator("pg_catalog", name) for name in ("=", ">", ">="))


class _Type(NamedTuple):
    name: str  # without length or scale, as a cast needs it
    send: str
    identical: bool = True
    ordered: bool = True
    collatable: bool = False


_TYPES = {
    16: _Type("boolean", "boolsend"),
    17: _Type("bytea", "byteasend"),
    20: _Type("bigint", "int8send"),
    21: _Type("smallint", "int2send"),
    23: _Type("integer", "int4send"),
    25: _Type("text", "textsend", collatable=True),
    114: _Type("json", "json_send", identical=False, ordered=False),
    700: _Type("real", "float4send", identical=False),
    701: _Type("double precision", "float8send", identical=False),
    1042: _Type("bpchar", "bpcharsend", identical=False, collatable=True),
    1043: _Type("character varying", "varcharsend", collatable=True),
    1082: _Type("date", "date_send"),
    1083: _Type("time without time zone", "time_send"),
    1114: _Type("timestamp without time zone", "timestamp_send"),
    1184: _Type("timestamp with time zone", "timestamptz_send"),
    1186: _Type("interval", "interval_send", identical=False),
    1700: _Type("numeric", "numeric_send", identical=False),
    2950: _Type("uuid", "uuid_send"),
    3802: _Type("jsonb", "jsonb_send", identical=False),
}

BUILT_IN_OIDS = tuple(_TYPES)

_BPCHAR, _VARCHAR, _NUMERIC, _INTERVAL = 1042, 1043, 1700, 1186
_TIMES = frozenset({1083, 1114, 1184})
_HEADER = 4
"""A length or scale is stored with the size of a varlena header added."""


def built_in_facts(oid: int, modifier: int) -> TypeFacts | None:
    """The facts of a type; None if only the catalog knows them."""
    known = _TYPES.get(oid)
    name = _name(known, oid, modifier) if known else None
    if known is None or name is None:
        return None
    return TypeFacts(
        declared=name,
        bare=known.name,
        carrier=name,
        carrier_oid=oid,
        form=Form.SAME,
        extension=None,
        equal=_EQUAL if known.ordered else None,
        greater=_GREATER if known.ordered else None,
        at_least=_AT_LEAST if known.ordered else None,
        send=sql.Identifier("pg_catalog", known.send),
        polymorphic=False,
        identical=known.identical,
        collatable=known.collatable,
        foreign_code=False,
    )


def _name(known: _Type, oid: int, modifier: int) -> str | None:
    """As format_type returns it; None where the modifier has a form of its own."""
    if modifier == UNSET:
        return known.name
    if oid == _BPCHAR:
        return f"character({modifier - _HEADER})"
    if oid == _VARCHAR:
        return f"{known.name}({modifier - _HEADER})"
    if oid in _TIMES:
        word, _, zone = known.name.partition(" ")
        return f"{word}({modifier}) {zone}"
    if oid == _NUMERIC:
        packed = modifier - _HEADER
        scale = (packed & 0x7FF ^ 0x400) - 0x400  # eleven bits with a sign
        return f"numeric({packed >> 16 & 0xFFFF},{scale})"
    return None


TEXT_OID, JSONB_OID, RECORD_OID, RECORD_ARRAY_OID = 25, 3802, 2249, 2287
TEXT_ARRAY_OID = 1009

# Every type that the wanted ones are made of: base types of domains, elements of arrays. Only arrays have the subscript
# handler of this name; point and others have an element type without being arrays. A type is trusted if its owner
# already has the rights of this session. The operators are those of the default btree operator class, which belongs to
# the type itself, to its polymorphic type, or to a type that it is binary coercible to.
_CATALOG = """
    WITH RECURSIVE reached AS (
        SELECT t.oid, t.typbasetype, CASE WHEN t.typsubscript = 'array_subscript_handler'::regproc THEN t.typelem
                                          ELSE 0 END AS element
          FROM pg_catalog.pg_type t WHERE t.oid = ANY (%(oids)s::oid[])
         UNION
        SELECT t.oid, t.typbasetype, CASE WHEN t.typsubscript = 'array_subscript_handler'::regproc THEN t.typelem
                                          ELSE 0 END
          FROM reached r
          JOIN pg_catalog.pg_type t ON t.oid = ANY (ARRAY[r.typbasetype, r.element])
    ), ordered AS (
        SELECT o.opcintype, o.opcfamily, e.amopopr AS equal, g.amopopr AS greater, l.amopopr AS at_least
          FROM pg_catalog.pg_opclass o
          JOIN pg_catalog.pg_amop e ON e.amopfamily = o.opcfamily AND e.amoplefttype = o.opcintype
           AND e.amoprighttype = o.opcintype AND e.amopstrategy = 3
          JOIN pg_catalog.pg_amop g ON g.amopfamily = o.opcfamily AND g.amoplefttype = o.opcintype
           AND g.amoprighttype = o.opcintype AND g.amopstrategy = 5
          JOIN pg_catalog.pg_amop l ON l.amopfamily = o.opcfamily AND l.amoplefttype = o.opcintype
           AND l.amoprighttype = o.opcintype AND l.amopstrategy = 4
         WHERE o.opcdefault AND o.opcmethod = (SELECT oid FROM pg_catalog.pg_am WHERE amname = 'btree')
    )
    SELECT t.oid, n.nspname AS schema, t.typname AS name, t.typtype AS kind, t.typbasetype AS base,
           t.typtypmod AS base_modifier, t.typcollation <> 0 AS collatable, t.typarray AS array, r.element,
           t.typsend <> 0 AND t.typreceive <> 0 AS has_binary, sn.nspname AS send_schema, sp.proname AS send_name,
           pg_catalog.pg_has_role(t.typowner, current_user, 'MEMBER') AS trusted,
           (SELECT x.extname FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension x ON x.oid = d.refobjid
             WHERE d.classid = 'pg_catalog.pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e') AS extension,
           en.nspname AS equal_schema, eo.oprname AS equal_name,
           gn.nspname AS greater_schema, gr.oprname AS greater_name,
           ln.nspname AS at_least_schema, lo.oprname AS at_least_name,
           EXISTS (SELECT FROM pg_catalog.pg_amproc p
                    WHERE p.amprocfamily = c.opcfamily AND p.amproclefttype = c.opcintype AND p.amprocnum = 4
                      AND p.amproc IN ('btequalimage'::regproc, 'btvarstrequalimage'::regproc)
                      AND c.opcintype <> 'bpchar'::regtype) AS identical
      FROM reached r
      JOIN pg_catalog.pg_type t ON t.oid = r.oid
      JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
      LEFT JOIN pg_catalog.pg_proc sp ON sp.oid = t.typsend
      LEFT JOIN pg_catalog.pg_namespace sn ON sn.oid = sp.pronamespace
      LEFT JOIN LATERAL (
            SELECT * FROM ordered o
             WHERE o.opcintype IN (
                   SELECT t.oid
                    UNION ALL SELECT CASE WHEN r.element <> 0 THEN 'anyarray'::regtype
                                          WHEN t.typtype = 'e' THEN 'anyenum'::regtype
                                          WHEN t.typtype = 'r' THEN 'anyrange'::regtype
                                          WHEN t.typtype = 'm' THEN 'anymultirange'::regtype END
                    UNION ALL SELECT b.casttarget FROM pg_catalog.pg_cast b
                               WHERE b.castsource = t.oid AND b.castmethod = 'b' AND b.castcontext = 'i')
             ORDER BY o.opcintype = t.oid DESC, o.opcintype LIMIT 1) AS c ON true
      LEFT JOIN pg_catalog.pg_operator eo ON eo.oid = c.equal
      LEFT JOIN pg_catalog.pg_namespace en ON en.oid = eo.oprnamespace
      LEFT JOIN pg_catalog.pg_operator gr ON gr.oid = c.greater
      LEFT JOIN pg_catalog.pg_namespace gn ON gn.oid = gr.oprnamespace
      LEFT JOIN pg_catalog.pg_operator lo ON lo.oid = c.at_least
      LEFT JOIN pg_catalog.pg_namespace ln ON ln.oid = lo.oprnamespace
"""

_NAMES = """
    SELECT pg_catalog.format_type(oid, modifier) AS name
      FROM unnest(%(oids)s::oid[], %(modifiers)s::integer[]) WITH ORDINALITY AS w(oid, modifier, place) ORDER BY place
"""

# The text of reg… names an object of one database, and its binary format is the object's number there. PostgreSQL does
# not accept the binary format of an empty vector.
_AS_TEXT = frozenset(
    {
        "int2vector",
        "oidvector",
        "regclass",
        "regcollation",
        "regconfig",
        "regdictionary",
        "regnamespace",
        "regoper",
        "regoperator",
        "regproc",
        "regprocedure",
        "regrole",
        "regtype",
        "regdatabase",
    }
)


def describe(connection: Connection, wanted: Sequence[tuple[int, int]]) -> list[TypeFacts]:
    """The facts of types, given as oid and modifier; the transaction's search_path must be pg_catalog."""
    known = {one: facts for one in wanted if (facts := built_in_facts(*one)) is not None}
    unknown = list(dict.fromkeys(one for one in wanted if one not in known))
    known |= zip(unknown, from_catalog(connection, unknown), strict=True)
    return [known[one] for one in wanted]


def from_catalog(connection: Connection, wanted: Sequence[tuple[int, int]]) -> list[TypeFacts]:
    """The facts as the catalog has them."""
    if not wanted:
        return []
    rows = connection.execute(_CATALOG, {"oids": [oid for oid, _ in wanted]}).fetchall()
    known = {row["oid"]: row for row in rows}
    plans = [_plan(oid, modifier, known) for oid, modifier in wanted]
    named = [name for plan in plans for name in (plan.declared, (plan.declared[0], UNSET), plan.carrier)]
    arguments = {"oids": [oid for oid, _ in named], "modifiers": [modifier for _, modifier in named]}
    names = iter([row["name"] for row in connection.execute(_NAMES, arguments).fetchall()])
    return [_facts(plan, next(names), next(names), next(names), known) for plan in plans]


class _Plan(NamedTuple):
    declared: tuple[int, int]  # a domain is replaced by its base type
    carrier: tuple[int, int]
    form: Form
    foreign_code: bool


def _plan(oid: int, modifier: int, known: Mapping[int, DictRow]) -> _Plan:
    base, base_modifier, has_domain = _base_of(oid, modifier, known)
    row = known.get(base)
    foreign_code = has_domain and not _all_trusted(oid, known)
    if row is None or (row["kind"] == "p" and base not in (RECORD_OID, RECORD_ARRAY_OID)):
        return _Plan((base, base_modifier), (TEXT_OID, UNSET), Form.TEXT, foreign_code)
    declared = (base, base_modifier)
    element = row["element"]
    if not element or row["name"] in _AS_TEXT:
        carrier, form = _scalar(row, base_modifier)
        return _Plan(declared, carrier, form, foreign_code or _has_code(row))
    element_base, element_modifier, element_is_domain = _base_of(element, base_modifier, known)
    inner = known.get(element_base)
    if inner is None or inner["element"] or base == RECORD_ARRAY_OID:  # arrays of domains over arrays
        return _Plan(declared, (JSONB_OID, UNSET), Form.JSON, True)
    inner_carrier, inner_form = _scalar(inner, element_modifier)
    untrusted = foreign_code or _has_code(inner) or (element_is_domain and not _all_trusted(element, known))
    match inner_form:
        # guarantee: K1
        case Form.SAME if not element_is_domain:
            return _Plan(declared, (base, base_modifier), Form.SAME, untrusted)
        case Form.SAME:
            return _Plan(declared, (inner["array"], inner_carrier[1]), Form.CAST, untrusted)
        case Form.JSON:
            return _Plan(declared, (JSONB_OID, UNSET), Form.JSON, untrusted)
        case _:
            return _Plan(declared, (TEXT_ARRAY_OID, UNSET), Form.CAST, untrusted)


def _base_of(oid: int, modifier: int, known: Mapping[int, DictRow]) -> tuple[int, int, bool]:
    """The type below all domains, its modifier, and whether there were any."""
    has_domain = False
    while (row := known.get(oid)) is not None and row["kind"] == "d":
        oid, modifier, has_domain = row["base"], max(modifier, row["base_modifier"]), True
    return oid, modifier, has_domain


def _scalar(row: DictRow, modifier: int) -> tuple[tuple[int, int], Form]:
    """The carrier of a type that is neither a domain nor an array."""
    built_in = row["schema"] == "pg_catalog"
    if row["kind"] == "c" or row["oid"] == RECORD_OID:
        return (JSONB_OID, UNSET), Form.JSON
    # only a superuser can create a base type; a range may have functions of its owner
    is_carried = (row["kind"] == "b" and (built_in or row["extension"])) or (row["kind"] in "rm" and built_in)
    if is_carried and row["has_binary"] and not (built_in and row["name"] in _AS_TEXT):
        return (row["oid"], modifier), Form.SAME
    return (TEXT_OID, UNSET), Form.TEXT


def _has_code(row: DictRow) -> bool:
    return row["kind"] in "crm" and not row["trusted"]


def _all_trusted(oid: int, known: Mapping[int, DictRow]) -> bool:
    row = known.get(oid)
    while row is not None and row["kind"] == "d":
        if not row["trusted"]:
            return False
        row = known.get(row["base"])
    return True


def _facts(plan: _Plan, declared: str, bare: str, carrier: str, known: Mapping[int, DictRow]) -> TypeFacts:
    row = _ordered(plan, known)
    return TypeFacts(
        declared=declared,
        bare=bare,
        carrier=carrier,
        carrier_oid=plan.carrier[0],
        form=plan.form,
        extension=_extension(plan.carrier[0], known),
        equal=_operator(row, "equal"),
        greater=_operator(row, "greater"),
        at_least=_operator(row, "at_least"),
        send=sql.Identifier(row["send_schema"], row["send_name"]) if row and row["send_name"] else None,
        polymorphic=bool(row and (row["element"] or row["kind"] in "erm")),
        identical=bool(row and row["identical"]),
        collatable=bool(row and row["collatable"]),
        foreign_code=plan.foreign_code,
    )


def _extension(oid: int, known: Mapping[int, DictRow]) -> str | None:
    row = known.get(oid)
    if row is None:
        return None
    return row["extension"] or (_extension(row["element"], known) if row["element"] else None)


def _ordered(plan: _Plan, known: Mapping[int, DictRow]) -> DictRow | None:
    """The type whose operators order the values; None if they have no order in source and mart."""
    row = known.get(plan.declared[0]) if plan.form is not Form.JSON else None  # a record has none in the mart
    if row is not None and row["element"]:
        element = known.get(_base_of(row["element"], UNSET, known)[0])
        return row if element is not None and element["equal_name"] is not None else None
    return row


def _operator(row: DictRow | None, name: str) -> Operator | None:
    if row is None or row[f"{name}_name"] is None:
        return None
    return Operator(row[f"{name}_schema"], row[f"{name}_name"])
