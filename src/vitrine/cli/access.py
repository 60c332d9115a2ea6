"""Commands for access: token create, list and revoke; audit."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrine.cli import backends, output

if TYPE_CHECKING:
    from datetime import datetime

    from vitrine.operations.bodies.access import AuditBody


token = typer.Typer(help="Access tokens of the API.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="Name of the token: who uses it.", show_default=False)]


@token.command()
def create(
    name: Name,
    role: Annotated[str, typer.Option(help="What it may do: viewer, operator or admin.", show_default=False)],
    ttl: Annotated[str, typer.Option(help="How long it is valid: 90d, 12h.")] = "90d",
) -> None:
    """Create a token and show it, once: only its hash is stored. The token alone is on standard output."""
    from pydantic import ValidationError

    from vitrine import input_errors
    from vitrine.errors import ConfigError
    from vitrine.operations.bodies.access import NewToken

    try:
        new = NewToken.model_validate({"name": name, "role": role, "ttl": ttl})
    except ValidationError as exc:
        mistakes = input_errors.explain(exc.errors(), NewToken)
        raise ConfigError("; ".join(one.sentence for one in mistakes), code="INVALID") from None
    with backends.opened() as backend:
        created = backend.access.create_token(new)
    output.show(created.token)
    until = output.local_time(created.expires_at, backend.settings)
    sys.stderr.write(f"Token '{created.name}' with the role {created.role}, valid until {until}; not shown again.\n")


@token.command(name="list")
def list_all(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Tokens that are not revoked, with their last use. `vitrine audit` shows the others."""
    with backends.opened() as backend:
        found = list(backend.access.tokens())
    if as_json:
        for one in found:
            output.show(one.model_dump_json())
        return
    rows = [
        (
            one.name,
            one.role,
            f"{one.prefix}…",
            output.local_time(one.expires_at, backend.settings),
            output.local_time(one.last_used_at, backend.settings) if one.last_used_at else "never",
            one.created_by,
        )
        for one in found
    ]
    output.show_table(("token", "role", "begins with", "valid until", "last used", "created by"), rows)
    if not found:
        output.show("There are no tokens.")


@token.command()
def revoke(name: Name) -> None:
    """End a token: every API process refuses it within five seconds."""
    with backends.opened() as backend:
        backend.access.revoke_token(name)
    output.show(f"{name}: revoked")


def audit(
    pipeline: Annotated[str | None, typer.Option(help="Only changes of this pipeline.", show_default=False)] = None,
    actor: Annotated[str | None, typer.Option(help="Only changes by this token or user.", show_default=False)] = None,
    operation: Annotated[
        str | None, typer.Option(help="Only this operation, for example pipelines.change.", show_default=False)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only changes since this time (2026-01-31, 2026-01-31T12:00) or for so long (7d, 12h)."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many. Default: 50, with --json all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line, with everything.")] = False,
) -> None:
    """Show who changed what, newest first."""
    from itertools import islice

    from vitrine.store.access import AuditFilters

    with backends.opened() as backend:
        settings = backend.settings
        start = _parse_since(since, settings.zone) if since else None
        filters = AuditFilters(pipeline=pipeline, actor=actor, operation=operation, since=start)
        found = islice(backend.access.audit(filters), limit if limit or as_json else DEFAULT_LIMIT)
        if as_json:
            for one in found:
                output.show(one.model_dump_json())
            return
        rows = [
            (
                output.local_time(one.at, settings),
                f"{one.actor} ({one.role})",
                one.address or one.via,
                one.operation,
                one.pipeline or "",
                _shown(one),
            )
            for one in found
        ]
    output.show_table(("at", "who", "from", "operation", "pipeline", "change"), rows, wrap=("change",))


DEFAULT_LIMIT = 50
MAX_SHOWN = 60


def _shown(entry: "AuditBody") -> str:
    """The change in a few words; --json has all of it."""
    before, after = entry.before or {}, entry.after or {}
    names = list(dict.fromkeys((*before, *after)))
    return ", ".join(f"{name}: {_value(before, name)} → {_value(after, name)}" for name in names)


def _value(facts: dict[str, Any], name: str) -> str:
    text = "–" if facts.get(name) is None else " ".join(str(facts[name]).split())
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def _parse_since(text: str, zone: Any) -> "datetime":
    """A time, in the time zone of the schedules unless it names another, or a duration until now."""
    from datetime import UTC, datetime

    from vitrine.errors import ConfigError
    from vitrine.settings import parse_duration

    try:
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=zone)
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - parse_duration(text)
    except ValueError:
        raise ConfigError(
            f"--since '{text}' is neither a time such as 2026-01-31 nor a duration such as 7d", code="INVALID"
        ) from None
