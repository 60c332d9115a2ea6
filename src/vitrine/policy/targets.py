"""Where a pipeline may write."""

import re
from collections.abc import Collection
from fnmatch import fnmatchcase

from vitrine import plugins
from vitrine.errors import ConfigError
from vitrine.plugins import Target


def is_allowed_target(target: str, allowed: Collection[str]) -> bool:
    """Whether `target` is well formed and covered by one of the patterns in `allowed`."""
    parsed = plugins.parse_target(target)
    return parsed is not None and _is_covered(parsed, allowed)


def check_target(target: str, allowed: Collection[str]) -> Target:
    """The parsed target; ConfigError BAD_TARGET or TARGET_NOT_ALLOWED otherwise."""
    parsed = plugins.parse_target(target)
    if parsed is None:
        raise ConfigError(f"target {target!r} is not a valid name; {_grammar(target)}", code="BAD_TARGET")
    if _is_reserved(parsed):
        raise ConfigError(
            f"target {target!r} has a name that is reserved; choose another name", code="TARGET_NOT_ALLOWED"
        )
    if not _is_covered(parsed, allowed):
        raise ConfigError(
            f"target {target!r} is outside the allowed targets; choose one that matches: {', '.join(sorted(allowed))}",
            code="TARGET_NOT_ALLOWED",
        )
    return parsed


def _grammar(target: str) -> str:
    connector = plugins.sink_of(target)
    if connector is not None and connector.sink is not None:
        return f"write {connector.sink.grammar}"
    known = ", ".join(f"{one.name} ({one.sink.example})" for one in plugins.installed().values() if one.sink)
    return f"no installed connector writes '{target.partition(':')[0]}:' targets; installed: {known}"


def _is_covered(target: Target, allowed: Collection[str]) -> bool:
    return not _is_reserved(target) and any(fnmatchcase(str(target), pattern) for pattern in allowed)


def _is_reserved(target: Target) -> bool:
    sink = target.connector.sink
    # guarantee: G22
    return bool(sink is not None and sink.reserved and re.match(sink.reserved, target.name))
