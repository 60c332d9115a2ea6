"""New and edit: a definition as a form or as YAML, checked while it is typed, then stored."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import psycopg
from fastapi import Request
from nicegui import ui

from vitrine.console import drafts, parts, texts
from vitrine.console.drafts import Problem
from vitrine.console.pages.edit_views import Names, PreviewCard, Views
from vitrine.console.pages.overview import address_of
from vitrine.console.viewer import NAVIGATION, Console, Entry, Viewer
from vitrine.definition.model import Definition, StateChoice
from vitrine.errors import NotFound, StoredDefinitionInvalid, VitrineError, WorkRefused
from vitrine.operations import changes, checks, definitions, plans
from vitrine.operations.bodies.checks import ReportBody
from vitrine.operations.bodies.pipelines import ManagedByBody, PipelineBody, StoredPipelineBody
from vitrine.operations.bodies.plans import ColumnChangeBody, PlanBody, RunPlanBody
from vitrine.operations.context import TOO_MANY_CHECKS, Role


class ManagedCard:
    """The file, what to do with it, and the button that detaches the definition from it."""

    def __init__(self, viewer: Viewer, name: str, managed: ManagedByBody) -> None:
        self._viewer = viewer
        self._name = name
        self._file = managed.file
        with parts.box("v-card v-pad v-stack v-managed", tag="section") as card:
            card.props["aria-label"] = texts.MANAGED.format(file=managed.file)
            with parts.box("v-row"):
                parts.text(texts.MANAGED.format(file=managed.file), tag="strong")
                parts.text(texts.APPLIED, "v-muted")
                parts.when(managed.applied_at, age=True).classes("v-muted")
                if managed.differs:
                    parts.badge(texts.CHANGED_SINCE, "late")
            parts.text(texts.MANAGED_HELP, tag="p")
            parts.code(texts.APPLY_COMMAND.format(file=managed.file))
            if managed.differs:
                parts.text(texts.CHANGED_SINCE_HELP, "v-late-text", tag="p")
            with parts.box("v-row"):
                parts.button(texts.EDIT_HERE, self._detach)

    async def _detach(self) -> None:
        title = texts.EDIT_HERE_TITLE.format(name=self._name)
        if not await parts.confirm(title, texts.EDIT_HERE_EXPLAINED.format(file=self._file), texts.EDIT_HERE):
            return
        if await self._viewer.call(definitions.detach_file, self._name) is not None:
            self._viewer.client.run_javascript("location.reload()")


MAX_KEYS = 5


class PlanCard:
    def __init__(self) -> None:
        with parts.box("v-card", tag="section") as self._card:
            self._card.props["aria-label"] = texts.PLAN_CARD
            with parts.box("v-card-head"):
                parts.text(texts.PLAN_CARD, tag="h2")
                self._facts = parts.text("", "v-muted")
            self._problem = parts.text("", "v-pad v-problem", tag="p")
            self._body = parts.box("v-pad v-stack")
        self._card.set_visibility(False)

    def checking(self) -> None:
        self._card.set_visibility(True)
        parts.set_text(self._facts, texts.CHECKING)
        self._problem.set_visibility(False)

    def refuse(self, reasons: Sequence[str]) -> None:
        parts.set_text(self._facts, "")
        parts.set_text(self._problem, " · ".join(reasons))
        self._problem.set_visibility(True)
        self._body.clear()

    def show(self, plan: PlanBody) -> None:
        parts.set_text(self._facts, _facts(plan))
        self._body.clear()
        with self._body:
            for refusal in plan.refusals:
                _line(texts.LEVELS["error"], "failed", refusal.text)
            for run in plan.runs:
                _run(run)
            for column in plan.columns:
                _line(texts.COLUMN_CHANGES[column.change], "paused", _column(column))
            _line(texts.CHECKPOINT_BADGE, "idle", _sentence(plan.state.sentence))
            for text in (*([plan.cursor] if plan.cursor else []), *plan.left_out):
                _line(texts.LEVELS["note"], "idle", _sentence(text))


def _facts(plan: PlanBody) -> str:
    facts = [texts.PLAN_TARGET.format(target=plan.target)]
    if not plan.target_exists:
        facts.append(texts.TARGET_NEW)
    elif plan.rebuilds:
        facts.append(texts.PLAN_REBUILDS)
    if plan.stored:
        changed = ", ".join(plan.changes)
        facts.append(texts.PLAN_CHANGES.format(fields=changed) if changed else texts.PLAN_NO_CHANGES)
    return " · ".join(facts)


def _run(run: RunPlanBody) -> None:
    with parts.box("v-plan-run"):
        with parts.box("v-row"):
            for count, label, tone in (
                (run.added, texts.PLAN_ADDED, "success"),
                (run.changed, texts.PLAN_CHANGED, "running"),
                (run.removed, texts.PLAN_REMOVED, "failed"),
            ):
                if count is not None:
                    parts.badge(label.format(count=f"{count:,}"), tone if count else "idle")
            parts.text(_sentence(run.sentence), "v-finding-text" if run.refused is None else "v-finding-text v-problem")
        details = [
            texts.PLAN_COLUMN_COUNT.format(column=name, count=f"{count:,}")
            for name, count in run.changed_columns.items()
        ]
        examples = run.examples
        for label, keys in (
            (texts.PLAN_KEYS_ADDED, examples.added),
            (texts.PLAN_KEYS_CHANGED, list(examples.changed)),
            (texts.PLAN_KEYS_REMOVED, examples.removed),
        ):
            if keys:
                details.append(label.format(keys=", ".join(keys[:MAX_KEYS])))
        if run.seconds is not None:
            details.append(texts.PLAN_SECONDS.format(duration=parts.duration(run.seconds)))
        if details:
            parts.text(" · ".join(details), "v-muted v-finding-text", tag="p")


def _column(one: ColumnChangeBody) -> str:
    types = " → ".join(each for each in (one.stored, one.produced) if each)
    return f"{one.name} ({types}): {one.effect}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _line(label: str, tone: str, text: str) -> None:
    with parts.box("v-finding"):
        parts.badge(label, tone)
        parts.text(text, "v-finding-text")


STATE_CHOICE = "STATE_CHOICE"
VERSION_CONFLICT = "VERSION_CONFLICT"


class Saving:
    """`leave` opens another address: what was typed is stored, or discarded for another version."""

    def __init__(
        self,
        viewer: Viewer,
        stored: PipelineBody | None,
        leave: Callable[[str], Any],
    ) -> None:
        self._viewer = viewer
        self._stored = stored
        self._base = stored.definition() if stored else None
        self._opened, self._version = self._base, stored.config_version if stored else None
        self._leave = leave
        self._box = parts.box("v-stack")
        self._box.props["role"] = "alert"
        self._box.set_visibility(False)

    async def save(
        self, definition: Definition, *, state: StateChoice | None = None, validate: bool = True
    ) -> VitrineError | None:
        """Store it; a refusal is returned, unless it has become a question."""
        self._clear()
        try:
            saved = await self._store(definition, state=state, validate=validate)
        except VitrineError as exc:
            await self._ask(exc, definition, state)
            return exc
        except psycopg.OperationalError:
            self._viewer.tell(texts.STORE_UNAVAILABLE, problem=True)
            return None
        warnings = " ".join(saved.warnings)
        done = texts.SAVED_WITH if warnings else texts.SAVED
        self._viewer.tell(done.format(name=saved.name, warnings=warnings))
        self._viewer.poller.hurry()
        self._leave(address_of(saved.name))
        return None

    async def _store(self, definition: Definition, *, state: StateChoice | None, validate: bool) -> StoredPipelineBody:
        if self._stored is None or self._base is None:
            return await self._viewer.attempt(definitions.create, definition, validate=validate)
        return await self._viewer.attempt(
            definitions.change,
            str(self._stored.id),
            drafts.changes(self._base, definition),
            state=state,
            expected_version=self._version,
            validate=validate,
        )

    def typed_for(self, version: int, opened: Definition | None) -> None:
        """The text belongs to this version, whose definition was `opened`: a newer one is a conflict."""
        self._opened, self._version = opened or self._base, version

    def _clear(self) -> None:
        self._box.clear()
        self._box.set_visibility(False)

    async def _ask(self, exc: VitrineError, definition: Definition, state: StateChoice | None) -> None:
        self._box.set_visibility(True)
        if exc.code == VERSION_CONFLICT:
            await self._ask_version(definition, state)
        elif exc.code == STATE_CHOICE:
            self._ask_state(definition)
        elif isinstance(exc, NotFound) and self._stored is not None:
            with self._box, parts.box("v-card v-pad v-error"):
                parts.text(texts.GONE.format(name=self._stored.name), "v-error-text", tag="p")
        else:
            with self._box, parts.box("v-card v-pad v-error v-stack"):
                parts.text(str(exc), "v-error-text", tag="p")
                if isinstance(exc, WorkRefused):
                    with parts.box("v-row"):
                        parts.button(texts.SAVE_ANYWAY, self._again(definition, state=state, validate=False))

    def _again(self, definition: Definition, *, state: StateChoice | None, validate: bool = True) -> Callable[[], Any]:
        async def save() -> None:
            await self.save(definition, state=state, validate=validate)

        return save

    async def _ask_version(self, definition: Definition, state: StateChoice | None) -> None:
        """Another session has changed the pipeline: the person decides, and nothing that was typed is lost."""
        if self._stored is None or self._base is None:
            return
        newer = await self._viewer.call(definitions.get, str(self._stored.id))
        if newer is None:
            return
        opened, now = changes.flat(self._opened or self._base), changes.flat(newer.definition())
        differ = [name for name in dict.fromkeys((*opened, *now)) if opened.get(name) != now.get(name)]
        explained = texts.CONFLICT_HELP.format(fields=", ".join(differ)) if differ else texts.CONFLICT_SAME

        async def save_over() -> None:
            # compared with the stored one from now on, so that the change restores every field as it was typed
            self._base = self._opened = newer.definition()
            self._version = newer.config_version
            await self.save(definition, state=state)

        async def take() -> None:
            if await parts.confirm(
                texts.TAKE_STORED.format(version=newer.config_version),
                texts.TAKE_STORED_EXPLAINED,
                texts.DISCARD,
                danger=True,
            ):
                self._leave(f"{address_of(newer.name)}/edit")

        with self._box, parts.box("v-card v-pad v-error v-stack"):
            parts.text(texts.CONFLICT, tag="strong")
            parts.text(explained, tag="p")
            with parts.box("v-row"):
                parts.button(texts.SAVE_OVER.format(version=newer.config_version), save_over, primary=True)
                parts.button(texts.TAKE_STORED.format(version=newer.config_version), take, danger=True)

    def _ask_state(self, definition: Definition) -> None:
        if self._base is None:
            return
        changed = changes.changed_fields(self._base, definition)
        fields = ", ".join(sorted(changed & (changes.IDENTITY | changes.QUERY)))
        with self._box, parts.box("v-card v-pad v-stack v-choice"):
            parts.text(texts.STATE_CHOICE, tag="strong")
            parts.text(texts.STATE_CHOICE_HELP.format(fields=fields), tag="p")
            if not changed & changes.IDENTITY:
                with parts.box("v-row"):
                    parts.button(texts.STATE_KEEP, self._again(definition, state="keep"), primary=True)
                    parts.text(texts.STATE_KEEP_HELP, "v-muted v-choice-text")
            with parts.box("v-row"):
                parts.button(texts.STATE_RESET, self._again(definition, state="reset"))
                parts.text(texts.STATE_RESET_HELP, "v-muted v-choice-text")


QUIET_SECONDS = 0.4
"""Checks wait until nothing is typed for so long."""

BUSY_SECONDS = 1.5
PREVIEW_ROWS = 20


def register(console: Console) -> None:
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
