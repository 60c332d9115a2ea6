"""The two views of what is typed: the form with its SQL editor, and the whole definition as YAML."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from nicegui import ui
from nicegui.element import Element

from vitrine.console import drafts, parts, texts
from vitrine.console.components.editor import EditorHelp
from vitrine.console.drafts import EMPTY_FORM, Form, Problem, Reading
from vitrine.console.pages.edit_form import DefinitionForm
from vitrine.console.pages.edit_results import Findings
from vitrine.console.viewer import Viewer
from vitrine.service.bodies.checks import ReportBody
from vitrine.service.bodies.pipelines import PipelineBody

DRAFT_KEY = "vitrine-draft:"
"""What is typed is kept in the tab under this key and the name of the pipeline; empty for a new one."""


class Views:
    """One of them is visible, and has what is typed. `read_only`: nothing can be typed, kept or restored."""

    def __init__(
        self,
        viewer: Viewer,
        stored: PipelineBody | None,
        on_change: Callable[[], Any],
        *,
        read_only: bool = False,
    ) -> None:
        self._viewer = viewer
        self._base = base = stored.definition() if stored else None
        self._version = stored.config_version if stored else None
        # the version that the text was typed for, which may be older than the stored one, and its definition as YAML
        self.opened = (self._version, drafts.yaml_of(base) if base else "")
        self.is_read_only = read_only
        self._on_change = on_change
        self._is_offering = False
        self.as_yaml = base is not None and not drafts.fits_form(base, base)
        self._first_form: Form = drafts.form_of(base) if base and not self.as_yaml else EMPTY_FORM
        self._first_yaml = drafts.yaml_of(base) if base and self.as_yaml else ""
        self._key = f"{DRAFT_KEY}{base.name if base else ''}"
        names = sorted({"default", *(name.lower() for name in viewer.settings.sources)})
        self.form = DefinitionForm(self._first_form, names, on_change, read_only=read_only)

    # -- building ---------------------------------------------------------------------------------------------------

    def build_switch(self) -> None:
        with parts.box("v-switch") as switch:
            switch.props["role"] = "group"
            switch.props["aria-label"] = texts.EDIT_AS
            self._switches: dict[bool, Element] = {
                False: parts.button(texts.FORM, self.to_form),
                True: parts.button(texts.YAML, self.to_yaml),
            }

    def build(self, below_editor: Callable[[], Any]) -> None:
        self._kept = parts.box("v-maybe")
        with parts.box("v-edit") as self._form_area:
            with parts.box("v-stack"):
                self._build_query(below_editor)
                with _card(texts.CHECKS, texts.CHECKS_HINT):
                    self.form.build_checks()
            with parts.box("v-stack"):
                for title, build in (
                    (texts.MART_CARD, self.form.build_mart),
                    (texts.RUNS_CARD, self.form.build_runs),
                    (texts.MORE_CARD, self.form.build_more),
                ):
                    with _card(title):
                        build()
        with _card(texts.YAML) as self._yaml_area:
            self._build_yaml()
        self._show()

    def _build_query(self, below_editor: Callable[[], Any]) -> None:
        with _card(texts.QUERY_CARD, "" if self.is_read_only else texts.QUERY_HINT):
            editor = self.form.build_query()
            self.query_help = EditorHelp(editor, label=texts.QUERY_CARD, key=self._key, on_kept=self._offer_form)
            below_editor()
            self._findings = Findings(self.query_help.go_to)

    def _build_yaml(self) -> None:
        self._yaml = ui.codemirror(self._first_yaml, language="YAML", theme="basicLight", indent="  ")
        self._yaml.classes("v-editor v-editor-tall")
        self._yaml.on_value_change(self._on_change)
        if self.is_read_only:
            self._yaml.props("disable")
        self._yaml_help = EditorHelp(self._yaml, label=texts.YAML, key=f"{self._key}:yaml", on_kept=self._offer_yaml)
        self._yaml_findings = Findings(self._yaml_help.go_to)

    def _show(self) -> None:
        self._form_area.set_visibility(not self.as_yaml)
        self._yaml_area.set_visibility(self.as_yaml)
        for mode, button in self._switches.items():
            parts.set_attribute(button, "aria-pressed", "true" if mode is self.as_yaml else "false")

    # -- what is typed ----------------------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """The text in the visible editor, in which places are marked."""
        return str(self._yaml.value or "") if self.as_yaml else str(self.form.values["source_query"])

    def read(self) -> Reading:
        return drafts.read_yaml(self.text) if self.as_yaml else drafts.read_form(self.form.values, self._base)

    def to_yaml(self) -> None:
        if not self.as_yaml:
            self._yaml.set_value(drafts.yaml_of_form(self.form.values, self._base))
            self._switch(as_yaml=True)

    def to_form(self) -> None:
        if not self.as_yaml:
            return
        reading = self.read()
        if reading.definition is None:
            self._viewer.tell(texts.YAML_NOT_VALID.format(reason=reading.problems[0].text), problem=True)
        elif not drafts.fits_form(reading.definition, self._base):
            self._viewer.tell(texts.MORE_THAN_FORM, problem=True)
        else:
            self.form.fill(drafts.form_of(reading.definition))
            self._switch(as_yaml=False)

    def _switch(self, *, as_yaml: bool) -> None:
        self.as_yaml = as_yaml
        self._show()
        self._on_change()

    # -- findings ---------------------------------------------------------------------------------------------------

    def checking(self) -> None:
        (self._yaml_findings if self.as_yaml else self._findings).checking()

    def show_problems(self, problems: Sequence[Problem], report: ReportBody | None = None) -> None:
        """In the list, and marked in the editor."""
        (self._yaml_findings if self.as_yaml else self._findings).show(problems, report)
        marks = [
            {"line": one.line, "column": one.column, "text": one.text, "level": one.level}
            for one in problems
            if one.line is not None
        ]
        (self._yaml_help if self.as_yaml else self.query_help).mark_places(marks)

    # -- what an earlier page kept ------------------------------------------------------------------------------------

    def keep(self) -> None:
        """In the tab, until it is saved: the server may restart, and the page is then loaded again."""
        if self._is_offering or self.is_read_only:
            return  # what is kept is not decided yet
        typed = self.text if self.as_yaml else self.form.values
        if typed == (self._first_yaml if self.as_yaml else self._first_form):
            self.forget()
        else:
            version, opened = self.opened
            kept = {"typed": typed, "version": version, "opened": opened}
            (self._yaml_help if self.as_yaml else self.query_help).keep(kept)

    def forget(self) -> None:
        self.query_help.forget()
        self._yaml_help.forget()

    def _offer_form(self, kept: Any) -> None:
        """It comes from the browser: only values of known fields are taken."""
        draft = _draft(kept)
        if draft is None or not isinstance(draft.typed, dict):
            return
        known, given = self.form.values, cast(dict[str, Any], draft.typed)
        values = {name: given[name] for name, value in known.items() if type(given.get(name)) is type(value)}
        if known | values != known:
            self._offer(draft, lambda: self.form.fill(values))

    def _offer_yaml(self, kept: Any) -> None:
        draft = _draft(kept)
        if draft is None or not isinstance(draft.typed, str) or draft.typed == self.text:
            return
        text = draft.typed

        def restore() -> None:
            self._yaml.set_value(text)
            self._switch(as_yaml=True)

        self._offer(draft, restore)

    def _offer(self, draft: "Draft", restore: Callable[[], Any]) -> None:
        def choose(*, restored: bool) -> None:
            self._is_offering = False
            self._kept.clear()
            if restored:
                self.opened = (draft.version, draft.opened)
                restore()
            else:
                self.forget()
            self._on_change()

        if self.is_read_only:
            return
        self._is_offering = True
        self._kept.clear()
        with self._kept, parts.box("v-card v-pad v-row"):
            is_older = draft.version != self._version
            parts.text(texts.KEPT_OLDER.format(version=draft.version, newer=self._version) if is_older else texts.KEPT)
            parts.box("v-grow")
            parts.button(texts.RESTORE, lambda: choose(restored=True), primary=True)
            parts.button(texts.DISCARD, lambda: choose(restored=False))


@dataclass(frozen=True)
class Draft:
    """What an earlier page in this tab kept: the form or a text, and what it was typed for."""

    typed: object
    version: int | None  # None: a new pipeline
    opened: str  # the definition of that version, as YAML


def _draft(kept: Any) -> Draft | None:
    """None: it is not ours."""
    if not isinstance(kept, dict):
        return None
    given = cast(dict[str, Any], kept)
    version, opened = given.get("version"), given.get("opened")
    if not isinstance(version, int | None) or not isinstance(opened, str):
        return None
    return Draft(given.get("typed"), version, opened)


def _card(title: str, hint: str = "") -> Element:
    with parts.box("v-card", tag="section") as card:
        card.props["aria-label"] = title
        with parts.box("v-card-head"):
            parts.text(title, tag="h2")
            if hint:
                parts.text(hint, "v-muted v-hint")
    return card
