"""Types and collations with an equality of their own, which the embedded PostgreSQL does not bring along."""

from vitrine.postgres import Connection

_FUNCTIONS = (("in", "cstring", "public.caseless"), ("out", "public.caseless", "cstring"))
_BINARY = (("recv", "internal", "public.caseless"), ("send", "public.caseless", "bytea"))

_COMPARED = (("lt", "<"), ("le", "<="), ("eq", "="), ("ge", ">="), ("gt", ">"))


def create_caseless(connection: Connection, *, extension: bool = True) -> None:
    """Create public.caseless, a text that compares without regard to case, as citext does; needs a superuser.

    Its operators are not in SQL, which the planner would inline. As part of an extension the type is carried into marts
    under its own name; otherwise as text.
    """
    statements = [
        "CREATE TYPE public.caseless",
        *(
            f"CREATE FUNCTION public.caseless_{name}({takes}) RETURNS {gives}"
            f" LANGUAGE internal IMMUTABLE STRICT AS 'text{name}'"
            for name, takes, gives in (*_FUNCTIONS, *_BINARY)
        ),
        "CREATE TYPE public.caseless (INPUT = public.caseless_in, OUTPUT = public.caseless_out,"
        " RECEIVE = public.caseless_recv, SEND = public.caseless_send, LIKE = text, CATEGORY = 'S', COLLATABLE = true)",
        "CREATE CAST (public.caseless AS text) WITHOUT FUNCTION AS IMPLICIT",
        "CREATE CAST (text AS public.caseless) WITHOUT FUNCTION AS ASSIGNMENT",
        *(
            f"CREATE FUNCTION public.caseless_{name}(public.caseless, public.caseless) RETURNS boolean"
            # not LANGUAGE sql: the planner would replace the call by its body, and no index would match
            " LANGUAGE plpgsql IMMUTABLE STRICT AS 'BEGIN RETURN pg_catalog.lower($1::text)"
            f" OPERATOR(pg_catalog.{sign})"
            " pg_catalog.lower($2::text); END'"
            for name, sign in _COMPARED
        ),
        "CREATE FUNCTION public.caseless_cmp(public.caseless, public.caseless) RETURNS integer LANGUAGE sql IMMUTABLE"
        " STRICT AS 'SELECT pg_catalog.bttextcmp(pg_catalog.lower($1::text), pg_catalog.lower($2::text))'",
        *(
            f"CREATE OPERATOR public.{sign} (LEFTARG = public.caseless, RIGHTARG = public.caseless,"
            f" FUNCTION = public.caseless_{name}{', COMMUTATOR = OPERATOR(public.=), MERGES' if name == 'eq' else ''})"
            for name, sign in _COMPARED
        ),
        "CREATE OPERATOR CLASS public.caseless_ops DEFAULT FOR TYPE public.caseless USING btree AS"
        " OPERATOR 1 public.<, OPERATOR 2 public.<=, OPERATOR 3 public.=, OPERATOR 4 public.>=, OPERATOR 5 public.>,"
        " FUNCTION 1 public.caseless_cmp(public.caseless, public.caseless)",
    ]
    if extension:
        statements.append("ALTER EXTENSION plpgsql ADD TYPE public.caseless")
    for statement in statements:
        connection.execute(statement.encode())


def create_reversed(connection: Connection) -> None:
    """Create public.reversed, an integer whose default order is descending, by operators with names of their own.

    The operators of the usual names take it as an integer, and order it the other way round; needs a superuser.
    """
    statements = [
        "CREATE TYPE public.reversed",
        *(
            f"CREATE FUNCTION public.reversed_{name}({takes}) RETURNS {gives}"
            f" LANGUAGE internal IMMUTABLE STRICT AS 'int4{name}'"
            for name, takes, gives in (
                *(("in", "cstring", "public.reversed"), ("out", "public.reversed", "cstring")),
                *(("recv", "internal", "public.reversed"), ("send", "public.reversed", "bytea")),
            )
        ),
        "CREATE TYPE public.reversed (INPUT = public.reversed_in, OUTPUT = public.reversed_out,"
        " RECEIVE = public.reversed_recv, SEND = public.reversed_send, LIKE = integer, CATEGORY = 'N')",
        "CREATE CAST (public.reversed AS integer) WITHOUT FUNCTION AS IMPLICIT",
        "CREATE CAST (integer AS public.reversed) WITHOUT FUNCTION AS ASSIGNMENT",
        *(
            f"CREATE FUNCTION public.reversed_{name}(public.reversed, public.reversed) RETURNS boolean"
            f" LANGUAGE internal IMMUTABLE STRICT AS 'int4{opposite}'"
            for name, opposite in (("lt", "gt"), ("le", "ge"), ("eq", "eq"), ("ge", "le"), ("gt", "lt"))
        ),
        "CREATE FUNCTION public.reversed_cmp(public.reversed, public.reversed) RETURNS integer LANGUAGE sql IMMUTABLE"
        " STRICT AS 'SELECT pg_catalog.btint4cmp($2::integer, $1::integer)'",
        *(
            f"CREATE OPERATOR public.{sign}# (LEFTARG = public.reversed, RIGHTARG = public.reversed,"
            f" FUNCTION = public.reversed_{name}{', COMMUTATOR = OPERATOR(public.=#), MERGES' if name == 'eq' else ''})"
            for name, sign in _COMPARED
        ),
        "CREATE OPERATOR CLASS public.reversed_ops DEFAULT FOR TYPE public.reversed USING btree AS"
        " OPERATOR 1 public.<#, OPERATOR 2 public.<=#, OPERATOR 3 public.=#, OPERATOR 4 public.>=#,"
        " OPERATOR 5 public.>#, FUNCTION 1 public.reversed_cmp(public.reversed, public.reversed)",
        "ALTER EXTENSION plpgsql ADD TYPE public.reversed",
    ]
    for statement in statements:
        connection.execute(statement.encode())


def create_nondeterministic_collation(connection: Connection) -> None:
    """Create public.ignoring_case, which the catalog calls nondeterministic: the embedded PostgreSQL has no ICU."""
    connection.execute('CREATE COLLATION public.ignoring_case FROM "C"')
    connection.execute("UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'ignoring_case'")
