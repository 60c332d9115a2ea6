"""New and edit: a definition as a form or as YAML, checked while it is typed, then stored."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import psycopg
from fastapi import Request
from nicegui import ui
from nicegui.element import Element

from vitrine.console import drafts, parts, suggestions, texts
from vitrine.console.components.editor import EditorHelp
from vitrine.console.drafts import EMPTY_FORM, Problem, Reading
from vitrine.console.frame import HOME, NAVIGATION, Entry
from vitrine.console.pages.edit_form import DefinitionForm
from vitrine.console.pages.edit_results import Findings, PreviewCard, Suggestions
from vitrine.console.pages.edit_saving import Saving
from vitrine.console.pages.overview import address_of
from vitrine.console.suggestions import CursorSuggestion, KeySuggestion
from vitrine.console.viewer import Viewer
from vitrine.errors import NotFound, StoredDefinitionInvalid, VitrineError
from vitrine.model import Mode
from vitrine.service import checks, definitions, sources
from vitrine.service.bodies.checks import ReportBody
from vitrine.service.bodies.pipelines import PipelineBody
from vitrine.service.bodies.sources import TableBody
from vitrine.service.check_slots import TOO_MANY_CHECKS
from vitrine.service.context import Context
from vitrine.service.roles import Role

if TYPE_CHECKING:
    from vitrine.console.app import Console

QUIET_SECONDS = 0.4
"""Checks wait until nothing is typed for so long."""

BUSY_SECONDS = 1.5
PREVIEW_ROWS = 20
TABLES_PER_PAGE = 100
MAX_TABLES = 500
"""For completion; each with its columns is sent to the browser once."""


def register(console: "Console") -> None:
    NAVIGATION.append(Entry(texts.NEW, "/new", role=Role.ADMIN))

    @console.page("/new", title=texts.NEW, role=Role.ADMIN)
    async def new(viewer: Viewer, request: Request) -> None:
        await EditPage(viewer, None).build()

    @console.page("/pipelines/{name}/edit", title=texts.EDIT, role=Role.ADMIN)
    async def edit(viewer: Viewer, request: Request) -> None:
        name = str(request.path_params["name"]).replace("\0", "")[:63]
        try:
            stored = await viewer.attempt(definitions.get, name)
        except (NotFound, StoredDefinitionInvalid) as exc:
            with parts.box("v-card"):
                parts.empty(str(exc), texts.NO_PIPELINE_HELP)
            return
        viewer.client.title = f"{texts.EDIT_TITLE.format(name=name)} · {texts.PRODUCT}"
        await EditPage(viewer, stored).build()


def all_tables(context: Context, source: str) -> list[TableBody]:
    """The first tables of a source, as the API lists them page by page."""
    found: list[TableBody] = []
    after = ""
    while len(found) < MAX_TABLES:
        page = sources.tables(context, source, after=after, limit=TABLES_PER_PAGE)
        found += page.items
        if page.next is None:
            break
        after = page.next
    return found


class EditPage:
    """Reads what is typed, asks the service functions about it, and shows their answers."""

    def __init__(self, viewer: Viewer, stored: PipelineBody | None) -> None:
        self._viewer = viewer
        self._stored = stored
        self._base = stored.definition() if stored else None
        self._as_yaml = self._base is not None and not drafts.fits_form(self._base)
        self._form = DefinitionForm(
            drafts.form_of(self._base) if self._base and not self._as_yaml else EMPTY_FORM,
            sorted({"default", *(name.lower() for name in viewer.settings.sources)}),
            self._changed,
        )
        self._tables: dict[str, list[TableBody]] = {}
        self._produced: tuple[str, ...] = ()
        self._typed = 0  # counts changes
        self._checking: asyncio.Task[None] | None = None
        self._loading: asyncio.Task[None] | None = None

    # -- building ---------------------------------------------------------------------------------------------------

    async def build(self) -> None:
        self._build_head()
        self._kept = parts.box()
        self._saving = Saving(self._viewer, self._stored, self._saved, self._take)
        key = f"vitrine-draft:{self._stored.name if self._stored else ''}"
        with parts.box("v-edit") as self._form_area:
            self._build_form(key)
        with parts.box("v-card", tag="section") as self._yaml_area:
            self._yaml_area.props["aria-label"] = texts.YAML
            self._build_yaml(key)
        self._preview = PreviewCard()
        with ui.element("details").classes("v-card v-same") as self._same:
            parts.text(texts.YAML_CARD, tag="summary")
            self._same_box = parts.box("v-pad")
        self._same.on("toggle", self._show_same, [])
        self._show_mode()
        cast(Any, self._viewer.client).on_delete(self._close)
        if self._stored is not None:
            self._changed()
        self._loading = asyncio.create_task(self._load())

    def _build_head(self) -> None:
        with parts.box("v-head"):
            with parts.box("v-grow"):
                title = texts.EDIT_TITLE.format(name=self._stored.name) if self._stored else texts.NEW
                parts.text(title, "v-title", tag="h2")
                if self._stored is None:
                    parts.text(texts.NEW_HELP, "v-muted", tag="p")
                elif self._as_yaml:
                    parts.text(texts.ONLY_YAML, "v-muted", tag="p")
                else:
                    parts.link(texts.OPEN_PIPELINE, address_of(self._stored.name))
            with parts.box("v-row v-actions"):
                self._switches = self._build_switch()
                parts.button(texts.PREVIEW, self._show_preview).props["title"] = texts.PREVIEW_HELP
                parts.button(texts.SAVE, self._save, primary=True)

    def _build_switch(self) -> dict[bool, Element]:
        with parts.box("v-switch") as switch:
            switch.props["role"] = "group"
            switch.props["aria-label"] = texts.EDIT_AS
            return {
                False: parts.button(texts.FORM, self._to_form),
                True: parts.button(texts.YAML, self._to_yaml),
            }

    def _build_form(self, key: str) -> None:
        with parts.box("v-stack"), parts.box("v-card", tag="section") as card:
            card.props["aria-label"] = texts.QUERY_CARD
            with parts.box("v-card-head"):
                parts.text(texts.QUERY_CARD, tag="h2")
                self._tables_note = parts.text(texts.QUERY_HINT, "v-muted v-hint")
            editor = self._form.build_query()
            self._query_help = EditorHelp(editor, label=texts.QUERY_CARD, key=key, on_kept=self._offer_kept)
            self._suggestions = Suggestions(self._choose_key, self._choose_cursor)
            self._findings = Findings(self._query_help.go_to)
        with parts.box("v-stack"):
            for title, build in (
                (texts.MART_CARD, self._form.build_mart),
                (texts.RUNS_CARD, self._form.build_runs),
                (texts.MORE_CARD, self._form.build_more),
            ):
                with parts.box("v-card", tag="section") as card:
                    card.props["aria-label"] = title
                    with parts.box("v-card-head"):
                        parts.text(title, tag="h2")
                    build()

    def _build_yaml(self, key: str) -> None:
        text = drafts.yaml_of(self._base) if self._base and self._as_yaml else ""
        with parts.box("v-card-head"):
            parts.text(texts.YAML, tag="h2")
        self._yaml = ui.codemirror(text, language="YAML", theme="basicLight", indent="  ")
        self._yaml.classes("v-editor v-editor-tall")
        self._yaml.on_value_change(self._changed)
        on_kept = self._offer_kept if self._as_yaml else None
        self._yaml_help = EditorHelp(self._yaml, label=texts.YAML, key=f"{key}:yaml", on_kept=on_kept)
        self._yaml_findings = Findings(self._yaml_help.go_to)

    def _show_mode(self) -> None:
        self._form_area.set_visibility(not self._as_yaml)
        self._yaml_area.set_visibility(self._as_yaml)
        self._same.set_visibility(not self._as_yaml)
        for mode, button in self._switches.items():
            parts.set_attribute(button, "aria-pressed", "true" if mode is self._as_yaml else "false")

    async def _load(self) -> None:
        """What the inputs offer; the page is shown before."""
        found = await self._viewer.call(sources.transforms)
        if found is not None:
            self._form.offer_transforms([one.name for one in found.items if one.kind != "reader"])
        await self._load_tables(str(self._form.values["source"]))

    async def _load_tables(self, source: str) -> None:
        if source in self._tables:
            return
        self._tables[source] = []
        try:
            tables = await self._viewer.attempt(all_tables, source)
        except (VitrineError, psycopg.Error):
            return  # the checks report a source that does not respond
        self._tables[source] = tables
        self._query_help.complete([_for_completion(one) for one in tables])
        if len(tables) >= MAX_TABLES:
            parts.set_text(self._tables_note, texts.SHOWN_TABLES.format(count=len(tables)))
        self._suggest()

    # -- what is typed ----------------------------------------------------------------------------------------------

    @property
    def _text(self) -> str:
        """The text in the visible editor, in which places are marked."""
        return str(self._yaml.value or "") if self._as_yaml else str(self._form.values["source_query"])

    def _read(self) -> Reading:
        return drafts.read_yaml(self._text) if self._as_yaml else drafts.read_form(self._form.values, self._base)

    def _changed(self) -> None:
        """Something was typed: check it as soon as nothing more is."""
        self._typed += 1
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check_when_quiet())

    async def _check_when_quiet(self) -> None:
        seen = -1
        while seen != self._typed:
            seen = self._typed
            await asyncio.sleep(QUIET_SECONDS)
            if seen == self._typed:
                self._keep()
                while await self._check() and seen == self._typed:
                    await asyncio.sleep(BUSY_SECONDS)

    def _keep(self) -> None:
        help_, typed = (self._yaml_help, self._text) if self._as_yaml else (self._query_help, self._form.values)
        before = drafts.form_of(self._base) if self._base and not self._as_yaml else EMPTY_FORM
        if typed != (drafts.yaml_of(self._base) if self._base and self._as_yaml else before):
            help_.keep(typed)
        else:
            help_.forget()

    def _offer_kept(self, kept: Any) -> None:
        """What an earlier page kept; it comes from the browser, so only texts of known fields are taken."""
        if isinstance(kept, str) and self._as_yaml and kept != self._text:
            self._ask_kept(lambda: self._yaml.set_value(kept))
        elif isinstance(kept, dict) and not self._as_yaml:
            known = self._form.values
            given = cast(dict[str, Any], kept)
            values = {name: given[name] for name, value in known.items() if type(given.get(name)) is type(value)}
            if known | values != known:
                self._ask_kept(lambda: self._form.fill(values))

    def _ask_kept(self, restore: Any) -> None:
        def answer(act: Any) -> Any:
            def handle() -> None:
                self._kept.clear()
                act()
                self._changed()

            return handle

        self._kept.clear()
        with self._kept, parts.box("v-card v-pad v-row"):
            parts.text(texts.KEPT)
            parts.box("v-grow")
            parts.button(texts.RESTORE, answer(restore), primary=True)
            parts.button(texts.DISCARD, answer(lambda: None))

    def _to_yaml(self) -> None:
        if not self._as_yaml:
            self._yaml.set_value(drafts.yaml_of_form(self._form.values, self._base))
            self._switch(True)

    def _to_form(self) -> None:
        if not self._as_yaml:
            return
        reading = self._read()
        if reading.definition is None:
            self._viewer.tell(texts.YAML_NOT_VALID.format(reason=reading.problems[0].text), problem=True)
        elif not drafts.fits_form(reading.definition):
            self._viewer.tell(texts.ONLY_YAML, problem=True)
        else:
            self._form.fill(drafts.form_of(reading.definition))
            self._switch(False)

    def _switch(self, as_yaml: bool) -> None:
        self._as_yaml = as_yaml
        self._show_mode()
        self._changed()

    # -- checks -----------------------------------------------------------------------------------------------------

    async def _check(self) -> bool:
        """Ask source and target, and show what they say; True: they are busy, ask again."""
        reading = self._read()
        problems = list(reading.problems)
        report: ReportBody | None = None
        shown = self._text
        self._visible_findings.checking()
        if reading.definition is not None:
            try:
                report = await self._viewer.attempt(checks.validate, reading.definition)
                problems += drafts.problems_of_findings(report.findings, shown)
            except VitrineError as exc:
                if exc.code == TOO_MANY_CHECKS:
                    return True
                problems += drafts.problems_of(exc, shown, reading.definition.query or "")
            except psycopg.OperationalError:
                problems.append(Problem(texts.STORE_UNAVAILABLE))
        if shown == self._text:
            self._show_problems(problems, report if not reading.problems else None)
        self._produced = tuple(one.name for one in report.columns) if report else ()
        self._suggest()
        self._show_same()
        if not self._as_yaml:
            await self._load_tables(str(self._form.values["source"]))
        return False

    @property
    def _visible_findings(self) -> Findings:
        return self._yaml_findings if self._as_yaml else self._findings

    def _show_problems(self, problems: Sequence[Problem], report: ReportBody | None) -> None:
        self._visible_findings.show(problems, report)
        marks = [
            {"line": one.line, "column": one.column, "text": one.text, "level": one.level}
            for one in problems
            if one.line is not None
        ]
        (self._yaml_help if self._as_yaml else self._query_help).mark_places(marks)

    def _suggest(self) -> None:
        values = self._form.values
        query, tables = str(values["source_query"]), self._tables.get(str(values["source"]), [])
        keys = suggestions.keys(query, tables, self._produced)
        cursors = suggestions.cursors(query, tables, self._produced)
        self._suggestions.show(
            [one for one in keys if ", ".join(one.columns) != values["key_columns"]],
            [one for one in cursors if one.column != values["incremental_key"] or values["mode"] != Mode.INCREMENTAL],
        )

    def _choose_key(self, key: KeySuggestion) -> None:
        self._form.fill({"key_columns": ", ".join(key.columns)})

    def _choose_cursor(self, cursor: CursorSuggestion) -> None:
        chosen = {"mode": "incremental", "incremental_key": cursor.column, "incremental_id_key": cursor.id_column}
        key = {} if self._form.values["key_columns"] else {"key_columns": cursor.id_column}
        self._form.fill(chosen | key)

    async def _show_preview(self) -> None:
        reading = self._read()
        self._preview.checking()
        if reading.definition is None:
            self._preview.refuse([one.text for one in reading.problems])
            return
        try:
            self._preview.show(await self._viewer.attempt(checks.preview, reading.definition, limit=PREVIEW_ROWS))
        except VitrineError as exc:
            self._preview.refuse([str(exc)])
        except psycopg.OperationalError:
            self._preview.refuse([texts.STORE_UNAVAILABLE])

    def _show_same(self) -> None:
        """The form as YAML, to copy."""
        if self._as_yaml:
            return
        self._same_box.clear()
        with self._same_box:
            parts.code(drafts.yaml_of_form(self._form.values, self._base))

    # -- saving -----------------------------------------------------------------------------------------------------

    async def _save(self) -> None:
        reading = self._read()
        if reading.definition is None or not reading.storable:
            self._show_problems(reading.problems, None)
            self._viewer.tell(reading.problems[0].text, problem=True)
            return
        refused = await self._saving.save(reading.definition)
        if refused is not None:
            problems = drafts.problems_of(refused, self._text, reading.definition.query or "")
            self._show_problems(problems, None)

    def _saved(self, name: str) -> None:
        self._query_help.forget()
        self._yaml_help.forget()
        self._close()
        ui.navigate.to(address_of(name))

    def _take(self, stored: PipelineBody) -> None:
        """Another version replaces what was typed."""
        self._query_help.forget()
        self._yaml_help.forget()
        ui.navigate.to(f"{HOME}/pipelines/{stored.name}/edit")

    def _close(self) -> None:
        for task in (self._checking, self._loading):
            if task is not None:
                task.cancel()


def _for_completion(one: TableBody) -> dict[str, Any]:
    return {
        "schema": one.schema_name,
        "name": one.name,
        "kind": one.kind,
        "columns": [{"name": column.name, "type": column.type} for column in one.columns],
    }
