"""Honest queries with random changes."""

import re
from collections.abc import Sequence

from hypothesis import strategies as st

TOKENS = re.compile(r"'[^']*'|\w+|\S")
STRANGERS = (
    *("(", ")", "[", "]", "[1]", ",", ";", ".", "*", "$1", "$2", "'x'", "E'\\''", 'U&"a"', '"', "\\", "--", "/*", "*/"),
    *("SELECT", "FROM", "WHERE", "WITH", "AS", "UNION", "LATERAL", "DISTINCT", "OVER", "FILTER", "LIMIT", "COLLATE"),
    *("NULL", "NOT", "AND", "IS", "BETWEEN", "ROW", "ARRAY", "FOR UPDATE", "INTO t", "DELETE", "::text", "::regclass"),
    *("secret.t", "content.person", "film_work", "generate_series(1,2)", "pg_sleep(1)", ".pg_sleep"),
)


@st.composite
def mutated(draw: st.DrawFn, queries: Sequence[str]) -> str:
    """One of the queries with a few tokens removed, repeated, or replaced by hostile ones."""
    tokens = TOKENS.findall(draw(st.sampled_from(queries)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(tokens)))
        length = draw(st.integers(0, 3))
        tokens[place : place + length] = draw(
            st.lists(st.sampled_from(STRANGERS) | st.sampled_from(tokens or ["1"]), max_size=3)
        )
    return " ".join(tokens)
