"""New and edit: a definition as a form or as YAML, checked while it is typed, then stored."""

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

import psycopg
from fastapi import Request
from nicegui import ui

from vitrine.console import drafts, parts, texts
from vitrine.console.drafts import Problem
from vitrine.console.frame import NAVIGATION, Entry
from vitrine.console.pages.edit_managed import ManagedCard
from vitrine.console.pages.edit_names import Names
from vitrine.console.pages.edit_plan import PlanCard
from vitrine.console.pages.edit_results import PreviewCard
from vitrine.console.pages.edit_saving import STATE_CHOICE, Saving
from vitrine.console.pages.edit_views import Views
from vitrine.console.pages.overview import address_of
from vitrine.console.viewer import Viewer
from vitrine.errors import NotFound, StoredDefinitionInvalid, VitrineError
from vitrine.model import Definition
from vitrine.service import checks, definitions, plans
from vitrine.service.bodies.checks import ReportBody
from vitrine.service.bodies.pipelines import PipelineBody
from vitrine.service.bodies.plans import PlanBody
from vitrine.service.check_slots import TOO_MANY_CHECKS
from vitrine.service.roles import Role

if TYPE_CHECKING:
    from vitrine.console.app import Console

QUIET_SECONDS = 0.4
"""Checks wait until nothing is typed for so long."""

BUSY_SECONDS = 1.5
PREVIEW_ROWS = 20


def register(console: "Console") -> None:
    NAVIGATION.append(Entry(texts.NEW, "/new", role=Role.ADMIN))

    @console.page("/new", title=texts.NEW, role=Role.ADMIN)
    async def new(viewer: Viewer, request: Request) -> None:
        EditPage(viewer, None).build()

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
        EditPage(viewer, stored).build()


class EditPage:
    """Reads what is typed, asks the service functions about it, and shows their answers."""

    def __init__(self, viewer: Viewer, stored: PipelineBody | None) -> None:
        self._viewer = viewer
        self._stored = stored
        self._base = stored.definition() if stored else None
        self._managed = stored.managed_by if stored else None
        self._views = Views(viewer, stored, self._changed, read_only=self._managed is not None)
        self._is_left = False
        self._names = Names(viewer, self._views)
        self._typed = 0  # counts changes
        self._checking: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._loading: asyncio.Task[None] | None = None

    def build(self) -> None:
        self._build_head()
        if self._stored is not None and self._managed is not None:
            ManagedCard(self._viewer, self._stored.name, self._managed)
        self._saving = Saving(self._viewer, self._stored, self._leave)
        self._views.build(self._names.build)
        self._plan = PlanCard()
        self._preview = PreviewCard()
        with ui.element("details").classes("v-card v-same") as self._same:
            parts.text(texts.YAML_CARD, tag="summary")
            self._same_box = parts.box("v-pad")
        self._show_same()
        cast(Any, self._viewer.client).on_delete(self._close)
        if self._stored is not None:
            self._changed()
        self._loading = asyncio.create_task(self._names.load())

    def _build_head(self) -> None:
        stored = self._stored
        with parts.box("v-head"):
            with parts.box("v-grow"):
                title = texts.EDIT_TITLE.format(name=stored.name) if stored else texts.NEW
                parts.text(title, "v-title", tag="h2")
                if stored is None:
                    parts.text(texts.NEW_HELP, "v-muted", tag="p")
                elif self._views.as_yaml:
                    parts.text(texts.ONLY_YAML, "v-muted", tag="p")
                if stored is not None:
                    parts.link(texts.OPEN_PIPELINE, address_of(stored.name))
            with parts.box("v-row v-actions"):
                self._views.build_switch()
                parts.button(texts.PREVIEW, self._show_preview).props["title"] = texts.PREVIEW_HELP
                if not self._views.is_read_only:
                    parts.button(texts.PLAN_CARD, self._show_plan).props["title"] = texts.PLAN_HELP
                    parts.button(texts.SAVE, self._save, primary=True)

    # -- checks -----------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Something was typed: check it as soon as nothing more is."""
        self._typed += 1
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check_when_quiet())
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.create_task(self._keep_soon())

    async def _keep_soon(self) -> None:
        """Apart from the checks, which may wait for a slow source."""
        await asyncio.sleep(QUIET_SECONDS)
        self._views.keep()

    async def _check_when_quiet(self) -> None:
        seen = -1
        while seen != self._typed:
            seen = self._typed
            await asyncio.sleep(QUIET_SECONDS)
            if seen == self._typed:
                while await self._check() and seen == self._typed:
                    await asyncio.sleep(BUSY_SECONDS)

    async def _check(self) -> bool:
        """Ask source and target, and show what they say; True: they are busy, or the store is silent: ask again."""
        reading, shown = self._views.read(), self._views.text
        problems = list(reading.problems)
        report: ReportBody | None = None
        is_silent = False
        self._views.checking()
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
                is_silent = True
        if shown == self._views.text:
            self._views.show_problems(problems, report)
        self._show_same()
        await self._names.show([one.name for one in report.columns] if report else ())
        return is_silent

    async def _show_preview(self) -> None:
        reading = self._views.read()
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

    async def _show_plan(self) -> None:
        reading = self._views.read()
        self._plan.checking()
        if reading.definition is None or not reading.storable:
            self._plan.refuse([one.text for one in reading.problems])
            return
        try:
            self._plan.show(await self._ask_plan(reading.definition))
        except VitrineError as exc:
            self._plan.refuse([str(exc)])
        except psycopg.OperationalError:
            self._plan.refuse([texts.STORE_UNAVAILABLE])

    async def _ask_plan(self, definition: Definition) -> PlanBody:
        if self._stored is None or self._base is None:
            return await self._viewer.attempt(plans.plan_change, definition)
        fields = drafts.changes(self._base, definition)
        return await self._viewer.attempt(plans.plan_change, str(self._stored.id), fields)

    def _show_same(self) -> None:
        """The form as YAML, to copy."""
        self._same.set_visibility(not self._views.as_yaml)
        self._same_box.clear()
        if not self._views.as_yaml:
            with self._same_box:
                parts.code(drafts.yaml_of_form(self._views.form.values, self._base))

    # -- saving -----------------------------------------------------------------------------------------------------

    async def _save(self) -> None:
        if self._is_left:  # it is saved, and the browser opens another page
            return
        self._views.keep()
        reading = self._views.read()
        if reading.definition is None or not reading.storable:
            self._views.show_problems(reading.problems)
            self._viewer.tell(reading.problems[0].text, problem=True)
            return
        version, opened = self._views.opened
        if version is not None:
            self._saving.typed_for(version, drafts.read_yaml(opened).definition)
        refused = await self._saving.save(reading.definition)
        if refused is not None and refused.code == STATE_CHOICE:
            await self._show_plan()  # what each choice would do to the mart
        elif refused is not None and refused.place is not None:
            self._views.show_problems(drafts.problems_of(refused, self._views.text, reading.definition.query or ""))

    def _leave(self, address: str) -> None:
        self._is_left = True
        self._close()
        self._views.forget()
        # not ui.navigate: it would add /console once more
        self._viewer.client.run_javascript(f"location.assign({json.dumps(address)})")

    def _close(self) -> None:
        for task in (self._checking, self._keeping, self._loading):
            if task is not None:
                task.cancel()
