"""Where a pipeline may write."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase

from vitrine.errors import ConfigError

IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,62}")
INDEX_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")
INDEX_PREFIX = "es:"

# Ours and PostgreSQL's own: a generous allow-list must not open these.
RESERVED_SCHEMAS = frozenset({"etl", "information_schema"})


@dataclass(frozen=True)
class Target:
    kind: str  # "postgres" or "es"
    schema: str | None  # None for an Elasticsearch index
    name: str

    def __str__(self) -> str:
        return f"{INDEX_PREFIX}{self.name}" if self.schema is None else f"{self.schema}.{self.name}"


def is_allowed_target(target: str, allowed: Collection[str]) -> bool:
    """Whether `target` is well formed and covered by one of the patterns in `allowed`."""
    parsed = _parse(target)
    return parsed is not None and _is_covered(parsed, allowed)


def check_target(target: str, allowed: Collection[str]) -> Target:
    """The parsed target; ConfigError BAD_TARGET or TARGET_NOT_ALLOWED otherwise."""
    parsed = _parse(target)
    if parsed is None:
        raise ConfigError(
            f"target {target!r} is not a valid name; write schema.table or es:index "
            "in lower-case letters, digits and underscores",
            code="BAD_TARGET",
        )
    if not _is_covered(parsed, allowed):
        raise ConfigError(
            f"target {target!r} is outside the allowed targets; choose one that matches: {', '.join(sorted(allowed))}",
            code="TARGET_NOT_ALLOWED",
        )
    return parsed


def _parse(target: str) -> Target | None:
    if target.startswith(INDEX_PREFIX):
        index = target.removeprefix(INDEX_PREFIX)
        return Target("es", None, index) if INDEX_NAME.fullmatch(index) else None
    schema, _, table = target.partition(".")
    if IDENTIFIER.fullmatch(schema) and IDENTIFIER.fullmatch(table):
        return Target("postgres", schema, table)
    return None


def _is_covered(target: Target, allowed: Collection[str]) -> bool:
    if target.schema is not None and (target.schema in RESERVED_SCHEMAS or target.schema.startswith("pg_")):
        return False
    return any(fnmatchcase(str(target), pattern) for pattern in allowed)
