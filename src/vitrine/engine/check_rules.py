"""Rules for the checks of a definition that hold for every sink."""

from collections.abc import Iterator

from vitrine import policy
from vitrine.checks import RowCount, Sql
from vitrine.errors import ConfigError
from vitrine.flow.checks import CHECK_UNSUPPORTED
from vitrine.flow.rows import Finding, TargetInfo
from vitrine.model import Definition, Mode


def refuse_queries(definition: Definition) -> None:
    """ConfigError for the first query of a check that the policy refuses."""
    for check in definition.checks:
        if isinstance(check, Sql):
            try:
                policy.check_sql(check.query)
            except ConfigError as refused:
                place = f", {refused.place}" if refused.place else ""
                text = f"check '{check.label}'{place}: {refused}"
                raise ConfigError(text, code=refused.code, place=refused.place) from None


def unsupported(definition: Definition, target: TargetInfo) -> Iterator[Finding]:
    """Checks that the sink would not carry out: rows must not be published without them."""
    for check in definition.checks:
        if check.kind not in target.checks:
            known = f"it has: {', '.join(sorted(target.checks))}" if target.checks else "it has none"
            text = (
                f"check '{check.label}': target {definition.target_table} has no checks of type {check.kind}; {known}"
            )
            yield Finding(CHECK_UNSUPPORTED, text, next(iter(check.checked), None), fatal=True)


def notes(definition: Definition) -> Iterator[Finding]:
    for check in definition.checks:
        if isinstance(check, RowCount) and definition.mode is Mode.INCREMENTAL:
            text = (
                f"check '{check.label}' is carried out when a load is published: the first load and full runs; changes"
                " are written without it"
            )
            yield Finding("CHECK_LOADS_ONLY", text, note=True)
