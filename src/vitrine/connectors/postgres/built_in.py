"""Facts of the commonest types, the same in every database: a new session takes milliseconds to ask its catalog."""

from typing import NamedTuple

from psycopg import sql

from vitrine.connectors.postgres.type_facts import UNSET, Form, Operator, TypeFacts

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

OIDS = tuple(_TYPES)

_BPCHAR, _VARCHAR, _NUMERIC, _INTERVAL = 1042, 1043, 1700, 1186
_TIMES = frozenset({1083, 1114, 1184})
_HEADER = 4
"""A length or scale is stored with the size of a varlena header added."""


def facts(oid: int, modifier: int) -> TypeFacts | None:
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
