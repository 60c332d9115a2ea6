"""Stores what was typed; a refusal that needs a choice of the person is shown as one."""

from collections.abc import Callable
from typing import Any

import psycopg

from vitrine import revisions
from vitrine.console import drafts, parts, texts
from vitrine.console.pages.overview import address_of
from vitrine.console.viewer import Viewer
from vitrine.errors import NotFound, VitrineError, WorkRefused
from vitrine.model import Definition, StateChoice
from vitrine.service import definitions
from vitrine.service.bodies.pipelines import PipelineBody, StoredPipelineBody

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
        opened, now = revisions.flat(self._opened or self._base), revisions.flat(newer.definition())
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
        changed = revisions.changed_fields(self._base, definition)
        fields = ", ".join(sorted(changed & (revisions.IDENTITY | revisions.QUERY)))
        with self._box, parts.box("v-card v-pad v-stack v-choice"):
            parts.text(texts.STATE_CHOICE, tag="strong")
            parts.text(texts.STATE_CHOICE_HELP.format(fields=fields), tag="p")
            if not changed & revisions.IDENTITY:
                with parts.box("v-row"):
                    parts.button(texts.STATE_KEEP, self._again(definition, state="keep"), primary=True)
                    parts.text(texts.STATE_KEEP_HELP, "v-muted v-choice-text")
            with parts.box("v-row"):
                parts.button(texts.STATE_RESET, self._again(definition, state="reset"))
                parts.text(texts.STATE_RESET_HELP, "v-muted v-choice-text")
