"""Every type that a column of PostgreSQL can have, with values and the type that carries them into a mart."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, timedelta

import psycopg
from psycopg import sql

from tests.helpers.types import create_caseless
from vitrine.postgres import Connection, raw

Order = Callable[[int], str]

DEFINITIONS = """
    CREATE SCHEMA IF NOT EXISTS content;
    CREATE TYPE content.mood AS ENUM ('zulu', 'so, so', 'quo"ted', 'back\\slash', 'NULL', '', 'alpha');
    CREATE DOMAIN content.title AS text CHECK (length(VALUE) <= 20);
    CREATE DOMAIN content.price AS numeric(14, 4);
    CREATE DOMAIN content.list_price AS content.price CHECK (VALUE > -1e9);
    CREATE DOMAIN content.temper AS content.mood;
    CREATE DOMAIN content.tags AS text[];
    CREATE DOMAIN content.marks AS content.price[];
    CREATE DOMAIN content.code AS character(5);
    CREATE TYPE content.pair AS (number numeric, label text);
    CREATE TYPE content.nested AS (id integer, mood content.mood, pair content.pair, titles content.title[]);
    CREATE DOMAIN content.sound_pair AS content.pair CHECK ((VALUE).number IS DISTINCT FROM 666);
    CREATE TYPE content.span AS RANGE (subtype = double precision, multirange_type_name = content.spans);
    CREATE DOMAIN content.open_span AS content.span;
    CREATE TYPE content.plain;
    CREATE FUNCTION content.plain_in(cstring) RETURNS content.plain
        LANGUAGE internal IMMUTABLE STRICT AS 'textin';
    CREATE FUNCTION content.plain_out(content.plain) RETURNS cstring
        LANGUAGE internal IMMUTABLE STRICT AS 'textout';
    CREATE TYPE content.plain (INPUT = content.plain_in, OUTPUT = content.plain_out, LIKE = text)
"""
"""Types of the source's owner; their labels and names are chosen to be quoted, escaped and ordered unlike text."""


@dataclass(frozen=True, repr=False)
class Kind:
    """A type of the source and the type that carries it; `nth` is the n-th value in the order of the type."""

    name: str
    type: str
    carrier: str
    samples: tuple[str, ...]  # distinct, as text that PostgreSQL parses
    nth: Order | None = None
    needs: str | None = None  # an extension, or one of FEATURES
    group: str = "Types of PostgreSQL"
    collation: str | None = None

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def definition(self) -> str:
        """The type of a column in CREATE TABLE."""
        return f"{self.type} COLLATE {self.collation}" if self.collation else self.type

    @property
    def is_same(self) -> bool:
        return self.carrier == self.type

    @property
    def is_converted(self) -> bool:
        """Whether the value becomes text or jsonb, whose content may depend on the settings of the session."""
        return not self.is_same and self.carrier in ("text", "text[]", "jsonb")

    def carried(self, value: sql.Composable) -> sql.Composable:
        """The value that the mart must hold."""
        if self.is_same:
            return value
        if self.carrier == "jsonb":
            return sql.SQL("to_jsonb({})").format(value)
        return sql.SQL("CAST({} AS {})").format(value, raw(self.carrier))


def _same(type_name: str, *samples: str, nth: Order | None = None, needs: str | None = None) -> Kind:
    return Kind(type_name, type_name, type_name, samples, nth, needs)


def _kind(name: str, type_name: str, carrier: str, *samples: str, group: str, needs: str | None = None) -> Kind:
    return Kind(name, type_name, carrier, samples, None, needs, group)


def _scaled(number: int) -> str:
    return f"{number}.{number % 7:04d}"


def _uuid(number: int) -> str:
    return f"00000000-0000-0000-0000-{number:012x}"


_NUMBERS = (
    _same("boolean", "false", "true"),
    _same("smallint", "-32768", "0", "32767", nth=str),
    _same("integer", "-2147483648", "0", "2147483647", nth=str),
    _same("bigint", "-9223372036854775808", "0", "9223372036854775807", nth=str),
    _same("numeric", "NaN", "-Infinity", "1.0", "2.00", "1e-30", "123456789012345678901234567890.50", nth=str),
    _same("numeric(12,4)", "-1.5000", "0", "12345678.1234", nth=_scaled),
    _same("real", "NaN", "-Infinity", "-0", "0.1", "1e-37", nth=str),
    _same("double precision", "NaN", "Infinity", "-0", "0.1", "1e-300", "1e300", nth=str),
    _same("money", "-1.50", "0", "92233720368547758.07", nth=str),
    _same("oid", "0", "1", "4294967295", nth=str),
)
_TEXTS = (
    _same("text", "", "a\tb\\N\n", "\\.", "NULL", "é😀", "'\"", nth=lambda number: f"{number:08d}"),
    _same("character varying", "", "a ", "é", "\\N", nth=lambda number: f"{number:08d}"),
    _same("character varying(60)", "", "a ", "é", "\\N", nth=lambda number: f"{number:08d}"),
    _same("character(12)", "a", "é", "\\N", "twelve chars", nth=lambda number: f"{number:08d}"),
    _same('"char"', "a", "", "\\101"),
    _same("name", "", "a", "é", "\\N", nth=lambda number: f"{number:08d}"),
    _same("bytea", "\\x", "\\x00", "\\x5c4e0a", "\\xff", nth=lambda number: f"\\x{number:08x}"),
    _same("bit(5)", "00000", "10101", "11111", nth=lambda number: f"{number % 32:05b}"),
    _same("bit(1)", "0", "1"),
    _same("bit varying", "", "1", "10101", "111111111", nth=lambda number: f"{number:020b}"),
    _same("bit varying(9)", "", "1", "10101", "111111111", nth=lambda number: f"{number % 512:09b}"),
    _same("uuid", _uuid(0), _uuid(7), "ffffffff-ffff-ffff-ffff-ffffffffffff", nth=_uuid),
)
_TIMES = (
    _same(
        "date",
        *("4713-01-01 BC", "-infinity", "2024-02-29", "5874897-12-31", "infinity"),
        nth=lambda number: str(date(2024, 1, 1) + timedelta(days=number)),
    ),
    _same("time without time zone", "00:00:00", "12:34:56.000001", "24:00:00"),
    _same("time(3) without time zone", "00:00:00", "12:34:56.001", "23:59:59.999"),
    _same("time with time zone", "00:00:00+00", "12:34:56.000001-03:30", "24:00:00+05:45"),
    _same("timestamp without time zone", "0044-03-15 12:00:00.000001 BC", "infinity", "2024-10-27 02:30:00"),
    _same("timestamp(3) without time zone", "-infinity", "2024-10-27 02:30:00.123", "9999-12-31 23:59:59.999"),
    _same("timestamp with time zone", "0044-03-15 12:00:00.000001+00 BC", "-infinity", "2024-10-27 02:30:00+02"),
    _same("timestamp(0) with time zone", "infinity", "2024-10-27 02:30:00+02", "1969-12-31 23:59:59+00"),
    _same("interval", "0", "-1 mons +1 day -00:00:01", "26:00:00.000001", "178000000 years", nth="{} hours".format),
    _same("interval(0)", "0", "1 mon", "-26:00:01"),
    _same("interval day to second", "0", "1 day 01:02:03.000004", "-1 day"),
)
_DOCUMENTS = (
    _same("json", '{"b" : 1.00, "a":2, "b":null}', "null", '"\\u00e9\\n"', "[ ]"),
    _same("jsonb", '{"b": 1.00, "a": 2}', "null", '"\\u00e9\\n"', "1E+400", nth=str),
    _same("jsonpath", "$", '$."a b"[*] ? (@ > 1)', "strict $.a"),
    _same("xml", "<a>é</a>", "<b/>", "text", needs="xml"),
    _same("tsvector", "", "'a':1 'b\\\\c':2A", "'é':3B"),
    _same("tsquery", "'a' & 'b'", "!'c'", "'a' <2> 'b':*AB"),
)
_PLACES = (
    _same("inet", "10.1.2.3/8", "::1/64", "0.0.0.0/0", "10.0.0.1", nth=lambda number: f"10.0.0.{number % 256}"),
    _same("cidr", "10.0.0.0/8", "192.168.1.0/24", "2001:db8::/32"),
    _same("macaddr", "08:00:2b:01:02:03", "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"),
    _same("macaddr8", "08:00:2b:01:02:03:04:05", "00:00:00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff:ff:ff"),
    _same("point", "(0.1,-0)", "(NaN,1e300)", "(Infinity,2)"),
    _same("line", "{1,2,3}", "{0.1,-1,0}", "{1,0,-5}"),
    _same("lseg", "[(0,0),(1,1)]", "[(0.1,2),(3,4)]", "[(5,5),(5,5)]"),
    _same("box", "(3,4),(1,2)", "(0.1,0.1),(0,0)", "(5,5),(5,5)"),
    _same("path", "[(0,0),(1,1)]", "((0,0),(1,1),(2,0))", "[(0.1,2)]"),
    _same("polygon", "((0,0),(1,1),(2,0))", "((0.1,0))", "((1,2),(3,4))"),
    _same("circle", "<(0,0),1>", "<(0.1,2),0>", "<(5,5),1e300>"),
)
_INTERNAL = (
    _same("pg_lsn", "0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF", nth=lambda number: f"0/{number:X}"),
    _same("pg_snapshot", "10:20:10,14", "1:1:", "5:9:5,6"),
    _same("txid_snapshot", "10:20:10,14", "1:1:", "5:9:5,6"),
    _same("xid", "0", "3", "4294967295"),
    _same("xid8", "0", "3", "18446744073709551615", nth=str),
    _same("cid", "0", "3", "4294967295"),
    _same("tid", "(0,1)", "(7,3)", "(4294967295,65535)", nth=lambda number: f"(0,{number})"),
    _same("refcursor", "", "a", "\\N"),
    Kind("int2vector", "int2vector", "text", ("1 2", "", "-3")),
    Kind("oidvector", "oidvector", "text", ("1 2", "", "4294967295")),
    Kind("aclitem", "aclitem", "text", ("postgres=r/postgres", "=w/postgres", "postgres=a/postgres")),
)
_REGISTERED = tuple(
    Kind(name, name, "text", samples, group="Types that name an object of the database (reg*)")
    for name, samples in {
        "regclass": ("pg_class", "etl.etl_runs", "pg_type"),
        "regcollation": ('"C"', '"POSIX"', "0"),
        "regconfig": ("simple", "english", "0"),
        "regdictionary": ("simple", "english_stem", "0"),
        "regnamespace": ("ugc", "content", "0"),
        "regoper": ("pg_catalog.||/", "pg_catalog.!!", "0"),
        "regoperator": ("+(integer,integer)", "||(text,text)", "0"),
        "regproc": ("pg_sleep", "now", "0"),
        "regprocedure": ("abs(integer)", "lower(text)", "0"),
        "regrole": ("postgres", "pg_monitor", "0"),
        "regtype": ("integer", "content.mood", "0"),
    }.items()
)
_RANGES = (
    _same("int4range", "empty", "[1,5)", "(,)", "[3,)", nth="[{},)".format),
    _same("int8range", "empty", "[1,5)", "(,7)"),
    _same("numrange", "empty", "[1.0,1.00]", "(,2.50)"),
    _same("tsrange", "empty", '["2024-10-27 02:30:00",infinity]', '["0044-03-15 BC",)'),
    _same("tstzrange", "empty", '["2024-10-27 02:30:00+02",infinity]', '["0044-03-15 BC",)'),
    _same("daterange", "empty", "[2024-02-29,infinity)", "(,2024-01-01)"),
    _same("int4multirange", "{}", "{[1,3),[5,8)}", "{(,)}"),
    _same("int8multirange", "{}", "{[1,3),[5,8)}", "{(,)}"),
    _same("nummultirange", "{}", "{[1.0,1.00],[5,8)}", "{(,)}"),
    _same("tsmultirange", "{}", '{["2024-10-27 02:30:00",infinity]}', "{(,)}"),
    _same("tstzmultirange", "{}", '{["2024-10-27 02:30:00+02",infinity]}', "{(,)}"),
    _same("datemultirange", "{}", "{[2024-02-29,infinity)}", "{(,)}"),
)
_ARRAYS = (
    _same("integer[]", "[0:2]={1,2,3}", "[-5:-4]={NULL,7}", "[2:2][3:4]={{1,2}}", "{}", nth="{{{}}}".format),
    _same("text[]", "{}", '{NULL,"NULL","",a}', '{{"a,b"},{"c\\\\d\\""}}', "[0:0]={é}"),
    _same("character varying(5)[]", "{a}", '{"b ",NULL}', "{}"),
    _same("character(3)[]", "{a}", '{"b ",NULL}', "{}"),
    _same("bit(3)[]", "{101}", "{000,NULL}", "{}"),
    _same("bit varying(3)[]", "{101}", '{0,"",NULL}', "{}"),
    _same("numeric[]", "{1.0,1.00}", "{NaN,NULL}", "{}"),
    _same("numeric(8,2)[]", "{1.00}", "{NaN,NULL}", "{}"),
    _same("double precision[]", "{-0,0.1}", "{NaN,Infinity,NULL}", "{}"),
    _same("boolean[]", "{t,f,NULL}", "{{t},{f}}", "{}"),
    _same("bytea[]", '{"\\\\x00","\\\\x"}', "{NULL}", "{}"),
    _same("uuid[]", f"{{{_uuid(1)},NULL}}", "{}", f"{{{_uuid(2)}}}"),
    _same("timestamp with time zone[]", '{"2024-10-27 02:30:00+02",infinity}', '{"0044-03-15 BC",NULL}', "{}"),
    _same("interval[]", '{"1 mon","26:00:00"}', "{NULL}", "{}"),
    _same("json[]", '{"{\\"b\\" : 1.00}",NULL}', "{}", '{"null"}'),
    _same("jsonb[]", '{"{\\"b\\": 1.00}",NULL}', "{}", '{"null"}'),
    _same("inet[]", "{10.0.0.1,::1/64}", "{NULL}", "{}"),
    _same("point[]", '{"(0.1,-0)",NULL}', "{}", '{"(1,2)"}'),
    _same("box[]", "{(3,4),(1,2);(5,6),(5,5)}", "{NULL}", "{}"),
    _same("int4range[]", '{"[1,5)",empty}', "{NULL}", "{}"),
    _same("int4multirange[]", '{"{[1,3),[5,8)}",NULL}', "{}", '{"{}"}'),
    Kind("aclitem[]", "aclitem[]", "text[]", ("{postgres=r/postgres,=w/postgres}", "{}", "{=w/postgres}")),
    Kind("regclass[]", "regclass[]", "text[]", ("{pg_class,NULL}", "{}", "{etl.etl_runs}")),
)
_OWN = "Types of the source's owner"
_OWNED = (
    _kind("enum", "content.mood", "text", "zulu", "so, so", 'quo"ted', "back\\slash", "NULL", "", "alpha", group=_OWN),
    _kind("array of an enum", "content.mood[]", "text[]", '{zulu,"so, so",NULL}', "{}", '{"NULL",""}', group=_OWN),
    _kind("domain over text", "content.title", "text", "", "a\\N", "é", group=_OWN),
    _kind("domain over numeric(14,4)", "content.price", "numeric(14,4)", "1.5", "NaN", "0", group=_OWN),
    _kind("domain over a domain", "content.list_price", "numeric(14,4)", "1.5", "2.5", "0", group=_OWN),
    _kind("domain over character(5)", "content.code", "character(5)", "a", "b ", "12345", group=_OWN),
    _kind("domain over an enum", "content.temper", "text", "zulu", "", "alpha", group=_OWN),
    _kind("domain over an array", "content.tags", "text[]", "{a,NULL}", "{}", "[0:0]={b}", group=_OWN),
    _kind("domain over an array of a domain", "content.marks", "numeric(14,4)[]", "{1.5}", "{}", "{NULL}", group=_OWN),
    _kind("array of a domain", "content.title[]", "text[]", '{a,NULL,"b,c"}', "{}", "{{a},{b}}", group=_OWN),
    _kind("array of a domain with a scale", "content.price[]", "numeric(14,4)[]", "{1.5}", "{}", "{NULL}", group=_OWN),
    _kind("array of a domain over an array", "content.tags[]", "jsonb", '{"{a,b}",NULL}', "{}", '{"{}"}', group=_OWN),
    _kind("composite", "content.pair", "jsonb", '(1.00,"a,b")', "(,)", '(NaN,"\\\\N")', group=_OWN),
    _kind(
        "nested composite",
        *("content.nested", "jsonb"),
        *('(1,zulu,"(1.0,x)","{a,b}")', '(,"so, so",,)', '(2,alpha,"(,)",{})'),
        group=_OWN,
    ),
    _kind("array of a composite", "content.pair[]", "jsonb", '{"(1.00,a)",NULL}', "{}", '{"(,)"}', group=_OWN),
    _kind("domain over a composite", "content.sound_pair", "jsonb", "(1.00,a)", "(,)", "(2,b)", group=_OWN),
    _kind("range", "content.span", "text", "[0.1,2)", "empty", "(,)", group=_OWN),
    _kind("multirange", "content.spans", "text", "{[0.1,2),[3,4]}", "{}", "{(,)}", group=_OWN),
    _kind("array of a range", "content.span[]", "text[]", '{"[0.1,2)",NULL}', "{}", "{empty}", group=_OWN),
    _kind("domain over a range", "content.open_span", "text", "[0.1,2)", "empty", "(,)", group=_OWN),
    _kind("base type", "content.plain", "text", "a", "", "\\N", group=_OWN),
)
_COLLATED = tuple(
    Kind(f"text, {name}", "text", "text", samples, nth, needs, "Collations", collation)
    for name, collation, samples, nth, needs in (
        ("collation C", '"C"', ("B", "a", "é"), "{:08d}".format, None),
        ("collation POSIX", '"POSIX"', ("B", "a", "é"), "{:08d}".format, None),
        ("ICU collation", "content.icu", ("B", "a", "é", "A"), "{:08d}".format, "icu"),
        ("nondeterministic ICU collation", "content.nondeterministic", ("B", "a", "é", "c"), "{:08d}".format, "icu"),
    )
)
_EXTENSIONS = tuple(
    Kind(name, type_name, type_name, samples, None, extension, "Types of extensions")
    for extension, name, type_name, samples in (
        ("vector", "vector", "public.vector", ("[1,2,3]", "[0.5]", "[-1,0]")),
        ("vector", "vector(3)", "public.vector(3)", ("[1,2,3]", "[0.5,0,0]", "[-1,0,1]")),
        ("vector", "halfvec", "public.halfvec", ("[1,2,3]", "[0.5]", "[-1,0]")),
        ("vector", "sparsevec", "public.sparsevec", ("{1:1,3:2}/5", "{}/5", "{5:-1}/5")),
        ("vector", "array of vector", "public.vector[]", ('{"[1,2,3]",NULL}', "{}", '{"[0.5]"}')),
        ("citext", "citext", "public.citext", ("B", "a", "é", "\\N")),
        ("citext", "array of citext", "public.citext[]", ("{A,b,NULL}", "{}", '{"é,"}')),
        ("ltree", "ltree", "public.ltree", ("a.b", "A", "", "z.y")),
        ("ltree", "lquery", "public.lquery", ("a.*", "b", "c.*{1,2}")),
        ("hstore", "hstore", "public.hstore", ('"a"=>"1", "b"=>NULL', "", '"é"=>"\\\\N"')),
    )
)

_CASELESS = Kind(
    *("text with operators of its own, as citext has them", "public.caseless", "public.caseless"),
    *(("B", "a", "é", "\\N"), "{:08d}".format, None, "Types of extensions"),
)

ALL = (
    *(*_NUMBERS, *_TEXTS, *_TIMES, *_DOCUMENTS, *_PLACES, *_INTERNAL, *_RANGES, *_ARRAYS),
    *(*_REGISTERED, *_COLLATED, *_OWNED, _CASELESS, *_EXTENSIONS),
)
BY_NAME = {kind.name: kind for kind in ALL}

FEATURES = {
    "icu": "CREATE COLLATION content.icu (provider = icu, locale = 'und');"
    "CREATE COLLATION content.nondeterministic (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
    "xml": "SELECT CAST('<a/>' AS xml)",
}
"""What a server may lack; the statement fails then."""


def define(connection: Connection) -> tuple[Kind, ...]:
    """Create the types; returns those that this server has."""
    connection.execute(raw(DEFINITIONS))
    create_caseless(connection)
    installed = set(_install(connection))
    return tuple(kind for kind in ALL if kind.needs is None or kind.needs in installed)


def _install(connection: Connection) -> Iterable[str]:
    rows = connection.execute("SELECT name FROM pg_available_extensions").fetchall()
    available = {row["name"] for row in rows}
    for extension in sorted({kind.needs for kind in ALL if kind.needs} & available):
        connection.execute(sql.SQL("CREATE EXTENSION {} SCHEMA public").format(sql.Identifier(extension)))
        yield extension
    for feature, statement in FEATURES.items():
        if _works(connection, statement):
            yield feature


def _works(connection: Connection, statement: str) -> bool:
    try:
        connection.execute(raw(statement))
    except psycopg.errors.FeatureNotSupported:
        return False
    return True
