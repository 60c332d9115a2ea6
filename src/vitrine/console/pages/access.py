"""Access, for administrators: tokens and the audit log."""

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlencode

import psycopg
from fastapi import Request
from nicegui import ui
from pydantic import ValidationError

from vitrine import input_errors
from vitrine.console import parts, texts
from vitrine.console.components import Column, Table
from vitrine.console.pages.overview import address_of
from vitrine.console.viewer import HOME, NAVIGATION, Console, Entry, Viewer
from vitrine.errors import VitrineError
from vitrine.operations import access
from vitrine.operations.bodies.access import AuditBody, CreatedToken, NewToken, TokenBody
from vitrine.operations.context import Context, Role
from vitrine.store.access import AuditFilters

PATH = "/access"
MAX_TEXT = 100
TOKENS_SHOWN = 50
ENTRIES_SHOWN = 50
MAX_FACTS = 4000
"""Characters of a change that are sent to the page; the API has all of them."""

TOKENS = (
    Column("name", texts.NAME, sub="prefix"),
    Column("role", texts.ROLE),
    Column("created_at", texts.CREATED, "clock", sub="created_by"),
    Column("expires_at", texts.EXPIRES, "age"),
    Column("last_used_at", texts.LAST_USED, "age"),
    Column("revoke", texts.REVOKE, "button"),
)
ENTRIES = (
    Column("at", texts.AT, "clock"),
    Column("actor", texts.ACTOR, sub="via"),
    Column("operation", texts.OPERATION, "code"),
    Column("pipeline", texts.PIPELINE, "link"),
    Column("facts", texts.CHANGE, "details"),
)


def register(console: Console) -> None:
    NAVIGATION.append(Entry(texts.ACCESS, PATH, Role.ADMIN))

    @console.page(PATH, title=texts.ACCESS, role=Role.ADMIN)
    async def show(viewer: Viewer, request: Request) -> None:
        given = {
            name: request.query_params.get(name, "").replace("\0", "")[:MAX_TEXT] for name in ("pipeline", "actor")
        }
        log = AuditLog(viewer, **given)
        await TokenList(viewer, log.refresh).build()
        await log.build()


class TokenList:
    """Every token that is not revoked, with a form for a new one."""

    def __init__(self, viewer: Viewer, on_change: Callable[[], Awaitable[None]]) -> None:
        self._viewer = viewer
        self._on_change = on_change
        self._after = ""
        self._next: str | None = None

    async def build(self) -> None:
        with parts.box("v-card", tag="section"):
            with parts.box("v-card-head"):
                parts.text(texts.TOKENS, tag="h2")
            self._form()
            self._created = parts.box("v-created")
            self._table = Table(texts.TOKENS, TOKENS, self._revoke)
            with parts.box() as self._empty:
                parts.empty(texts.NO_TOKENS, texts.NO_TOKENS_HELP)
            self._empty.set_visibility(False)  # not known yet
            with parts.box("v-pager v-pad") as self._pager:
                parts.button(texts.FIRST_PAGE, self._first_page)
                self._more = parts.button(texts.NEXT_PAGE.format(count=TOKENS_SHOWN), self._next_page)
        await self._read()

    def _form(self) -> None:
        with parts.box("v-toolbar v-pad", tag="section") as form:
            form.props["aria-label"] = texts.NEW_TOKEN
            self._name = ui.input(placeholder=texts.TOKEN_NAME).classes("v-field").props("dense outlined")
            self._name.props["aria-label"] = texts.TOKEN_NAME
            create = parts.once(self._create)
            self._name.on("keydown.enter", create, [])
            first = Role.ADMIN if self._viewer.visitor.session is None else Role.VIEWER
            self._role = ui.select({str(role): texts.ROLES[role] for role in Role}, value=str(first))
            self._role.props("dense outlined options-dense").classes("v-select").props["aria-label"] = texts.ROLE
            self._ttl = ui.select(dict(texts.TTLS), value="90d")
            self._ttl.props("dense outlined options-dense").classes("v-select").props["aria-label"] = texts.VALID_FOR
            parts.button(texts.CREATE_TOKEN, create, primary=True)
            self._problem = parts.text("", "v-problem", tag="p")
            self._problem.props["role"] = "alert"

    async def _create(self) -> None:
        if self._viewer.is_held:  # the page has no rights any more; a refusal would not hold it any longer
            parts.set_text(self._problem, texts.LOG_IN_WITH_FIRST)
            return
        parts.set_text(self._problem, "")
        is_first = self._viewer.visitor.session is None
        try:
            given = {"name": (self._name.value or "").strip(), "role": self._role.value, "ttl": self._ttl.value}
            new = NewToken.model_validate(given)
            if is_first and new.role is not Role.ADMIN:
                parts.set_text(self._problem, texts.FIRST_IS_ADMIN)
                return
            # from now on this page has no rights, and would be left before its only token is read
            self._viewer.is_held = is_first
            created = await self._viewer.attempt(access.create_token, new)
            self._viewer.tokens_changed()
        except ValidationError as exc:
            parts.set_text(self._problem, input_errors.explain(exc.errors(), NewToken)[0].sentence)
            return
        except (VitrineError, psycopg.OperationalError) as exc:
            self._viewer.is_held = False
            parts.set_text(self._problem, str(exc) if isinstance(exc, VitrineError) else texts.STORE_UNAVAILABLE)
            return
        self._name.set_value("")
        self._show_created(created, is_first=is_first)
        if not is_first:
            await self._read()
            await self._on_change()

    def _show_created(self, created: CreatedToken, *, is_first: bool) -> None:
        self._created.clear()
        with self._created, parts.box("v-pad v-once"):
            parts.text(texts.TOKEN_CREATED.format(name=created.name), tag="h3")
            parts.text(texts.ONCE_AND_LOG_IN if is_first else texts.TOKEN_ONCE, "v-muted", tag="p")
            parts.code(created.token, "v-token")
            parts.button(texts.GO_TO_LOGIN if is_first else texts.HIDE_TOKEN, self._hide)

    def _hide(self) -> None:
        self._created.clear()
        if self._viewer.is_held:
            self._viewer.is_held = False
            self._viewer.leave()

    async def _revoke(self, name: str) -> None:
        own = texts.REVOKE_OWN if name == self._viewer.name and self._viewer.visitor.session is not None else ""
        title = texts.REVOKE_TITLE.format(name=name)
        if not await parts.confirm(title, f"{texts.REVOKE_EXPLAINED} {own}".strip(), texts.REVOKE, danger=True):
            return
        if await self._viewer.act(texts.REVOKED.format(name=name), revoke, name):
            self._viewer.tokens_changed()
            await self._read()
            await self._on_change()

    async def _read(self) -> None:
        page = await self._viewer.call(access.list_tokens, after=self._after, limit=TOKENS_SHOWN)
        if page is None:
            return
        self._next = page.next
        self._table.show([_token(one) for one in page.items])
        self._table.set_visibility(bool(page.items))
        self._empty.set_visibility(not page.items)
        self._pager.set_visibility(bool(self._after or page.next))
        self._more.set_visibility(page.next is not None)

    async def _first_page(self) -> None:
        self._after = ""
        await self._read()

    async def _next_page(self) -> None:
        self._after = self._next or ""
        await self._read()


class AuditLog:
    """Who changed what, newest first."""

    def __init__(self, viewer: Viewer, pipeline: str, actor: str) -> None:
        self._viewer = viewer
        self._filters = {"pipeline": pipeline, "actor": actor}
        self._before: int | None = None
        self._next: int | None = None

    async def build(self) -> None:
        with parts.box("v-card", tag="section"):
            with parts.box("v-card-head"):
                parts.text(texts.AUDIT, tag="h2")
            with parts.box("v-toolbar v-pad"):
                for name, label in (("pipeline", texts.PIPELINE), ("actor", texts.ACTOR)):
                    self._filter(name, label)
            self._table = Table(texts.AUDIT, ENTRIES)
            self._empty = parts.text(texts.NO_ENTRIES, "v-muted v-pad", tag="p")
            self._empty.set_visibility(False)
            with parts.box("v-pager v-pad") as self._pager:
                parts.button(texts.NEWEST, self._newest)
                self._more = parts.button(texts.OLDER, self._older)
        await self._read()

    def _filter(self, name: str, label: str) -> None:
        field = ui.input(placeholder=label, value=self._filters[name]).classes("v-field")
        field.props('dense outlined clearable debounce="300"').props["aria-label"] = texts.FILTER_BY.format(field=label)

        async def apply(event: Any) -> None:
            self._filters[name] = (event.value or "").strip().replace("\0", "")[:MAX_TEXT]
            self._before = None
            query = urlencode({key: value for key, value in self._filters.items() if value})
            address = json.dumps(f"{HOME}{PATH}?{query}" if query else f"{HOME}{PATH}")
            self._viewer.client.run_javascript(f"history.replaceState(null, '', {address})")
            await self._read()

        field.on_value_change(apply)

    async def refresh(self) -> None:
        await self._read()

    async def _read(self) -> None:
        filters = AuditFilters(pipeline=self._filters["pipeline"] or None, actor=self._filters["actor"] or None)
        asked = (dict(self._filters), self._before)
        page = await self._viewer.call(access.list_audit_log, filters, before=self._before, limit=ENTRIES_SHOWN)
        if page is None or asked != (self._filters, self._before):  # other entries were asked for meanwhile
            return
        self._next = page.next
        self._table.show([_entry(one) for one in page.items])
        self._table.set_visibility(bool(page.items))
        self._empty.set_visibility(not page.items)
        self._pager.set_visibility(bool(self._before or page.next))
        self._more.set_visibility(page.next is not None)

    async def _newest(self) -> None:
        self._before = None
        await self._read()

    async def _older(self) -> None:
        self._before = self._next
        await self._read()


def revoke(context: Context, name: str) -> bool:
    """True, so that the page sees that it is done."""
    access.revoke_token(context, name)
    return True


def _token(one: TokenBody) -> dict[str, Any]:
    return {
        "key": one.name,
        "name": one.name,
        "prefix": f"{one.prefix}…",
        "role": texts.ROLES[one.role],
        "created_at": one.created_at.isoformat(),
        "created_by": texts.CREATED_BY.format(name=one.created_by),
        "expires_at": one.expires_at.isoformat(),
        "last_used_at": one.last_used_at.isoformat() if one.last_used_at else None,
        "revoke": {"text": texts.REVOKE, "name": texts.REVOKE_NAMED.format(name=one.name)},
    }


def _entry(one: AuditBody) -> dict[str, Any]:
    names: list[str] = sorted({*(one.before or {}).keys(), *(one.after or {}).keys()})
    facts = {"before": one.before, "after": one.after}
    return {
        "key": one.id,
        "at": one.at.isoformat(),
        "actor": one.actor,
        "via": " · ".join(text for text in (one.role, one.via, one.address) if text),
        "operation": one.operation,
        "pipeline": {"text": one.pipeline, "href": address_of(one.pipeline)} if one.pipeline else None,
        "facts": {
            "summary": ", ".join(names[:4]) + (" …" if len(names) > 4 else ""),
            "text": json.dumps(facts, indent=2, ensure_ascii=False)[:MAX_FACTS],
        }
        if names
        else None,
    }
