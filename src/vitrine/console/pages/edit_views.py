"""What the page that edits a definition shows: the form, the definition as YAML, and results beside them."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import psycopg
from nicegui import ui
from nicegui.element import Element

from vitrine.console import drafts, parts, texts
from vitrine.console.components import EditorHelp, Grid
from vitrine.console.drafts import EMPTY_FORM, CursorSuggestion, Form, KeySuggestion, Problem, Reading
from vitrine.console.viewer import Viewer
from vitrine.definition.model import Mode
from vitrine.errors import VitrineError
from vitrine.operations import checks
from vitrine.operations.bodies.checks import PreviewBody, ReportBody
from vitrine.operations.bodies.overview import TableBody
from vitrine.operations.bodies.pipelines import PipelineBody
from vitrine.operations.context import Context


class Findings:
    """The state of the checks in one line, and every reason below it."""

    def __init__(self, go_to: Callable[[int, int], Any]) -> None:
        self._go_to = go_to
        with parts.box("v-findings") as area:
            area.props["aria-live"] = "polite"
            self._summary = parts.text(texts.NOT_CHECKED_YET, "v-muted", tag="p")
            self._list = parts.box("v-finding-list", tag="ul")
        self._shown: Sequence[Problem] = ()

    def checking(self) -> None:
        parts.set_text(self._summary, texts.CHECKING)

    def show(self, problems: Sequence[Problem], report: ReportBody | None) -> None:
        parts.set_text(self._summary, _summary(report) if report else "")
        self._summary.set_visibility(report is not None)
        if problems == self._shown:
            return
        self._shown = problems
        self._list.clear()
        with self._list:
            for one in problems:
                self._item(one)

    def _item(self, one: Problem) -> None:
        with parts.box("v-finding", tag="li") as item:
            item.props["data-level"] = one.level
            parts.badge(texts.LEVELS[one.level], texts.LEVEL_TONES[one.level])
            if one.line is not None and one.column is not None:
                line, column = one.line, one.column
                place = parts.button(
                    texts.AT_PLACE.format(line=line, column=column),
                    lambda: self._go_to(line, column),
                    name=texts.GO_TO_PLACE.format(line=line, column=column),
                )
                place.classes("v-place")
            parts.text(one.text, "v-finding-text")


def _summary(report: ReportBody) -> str:
    expected = report.rows_expected
    rows = texts.READY_ROWS_UNKNOWN if expected is None else texts.READY_ROWS.format(rows=f"{expected:,}")
    ready = texts.READY.format(columns=len(report.columns), key=", ".join(report.key) or texts.NO_KEY, rows=rows)
    return ready if report.target_exists else f"{ready}; {texts.TARGET_NEW}"


class Suggestions:
    """Keys and cursors to choose with a click."""

    def __init__(self, choose: Callable[[KeySuggestion | CursorSuggestion], Any]) -> None:
        self._choose = choose
        with parts.box("v-suggestions v-row") as self._box:
            self._box.props["aria-label"] = texts.SUGGESTIONS
            self._box.props["role"] = "group"
            parts.text(texts.SUGGESTIONS, "v-muted")
        self._box.set_visibility(False)
        self._chips: dict[KeySuggestion | CursorSuggestion, Element] = {}

    def show(self, keys: Sequence[KeySuggestion], cursors: Sequence[CursorSuggestion]) -> None:
        offered = (*keys, *cursors)
        self._box.set_visibility(bool(offered))
        for one in [known for known in self._chips if known not in offered]:
            self._chips.pop(one).delete()
        with self._box:
            # those that stay are not made again: a click on one that is replaced meanwhile would be lost
            for one in offered:
                if one not in self._chips:
                    self._chips[one] = self._make(one)

    def _make(self, one: KeySuggestion | CursorSuggestion) -> Element:
        if isinstance(one, KeySuggestion):
            label = texts.SUGGEST_KEY.format(columns=", ".join(one.columns))
            title = texts.SUGGEST_KEY_HELP.format(table=one.table)
        else:
            label = texts.SUGGEST_CURSOR.format(column=one.column)
            reasons = ", ".join(one.reasons)
            title = texts.SUGGEST_CURSOR_HELP.format(table=one.table, reasons=reasons, tie=one.id_column)
        chip = parts.button(label, _call(self._choose, one)).classes("v-chip")
        chip.props["title"] = title
        return chip


def _call(function: Callable[[Any], Any], argument: object) -> Callable[[], Any]:
    return lambda: function(argument)


class PreviewCard:
    def __init__(self) -> None:
        with parts.box("v-card", tag="section") as self._card:
            self._card.props["aria-label"] = texts.PREVIEW
            with parts.box("v-card-head"):
                parts.text(texts.PREVIEW, tag="h2")
                self._facts = parts.text("", "v-muted")
            self._problem = parts.text("", "v-pad v-problem", tag="p")
            self._grid = Grid(texts.PREVIEW_CAPTION)
        self._card.set_visibility(False)

    def checking(self) -> None:
        self._card.set_visibility(True)
        parts.set_text(self._facts, texts.CHECKING)

    def show(self, preview: PreviewBody) -> None:
        facts = [texts.PREVIEW_ROWS.format(rows=len(preview.rows))]
        if preview.rows_read != len(preview.rows):
            facts.append(texts.PREVIEW_READ.format(read=preview.rows_read))
        if preview.cut is not None:
            facts.append(texts.PREVIEW_CUT[preview.cut])
        if not preview.rows:
            facts = [texts.PREVIEW_EMPTY]
        parts.set_text(self._facts, "; ".join(facts))
        self._problem.set_visibility(False)
        self._grid.show([{"name": one.name, "type": one.type} for one in preview.columns], preview.rows)
        self._grid.set_visibility(bool(preview.columns))

    def refuse(self, reasons: Sequence[str]) -> None:
        parts.set_text(self._facts, "")
        parts.set_text(self._problem, " · ".join(reasons))
        self._problem.set_visibility(True)
        self._grid.set_visibility(False)


Input = ui.input | ui.textarea | ui.select | ui.checkbox | ui.codemirror


class DefinitionForm:
    """One input for each field; `values` is what was typed. `read_only`: nothing can be typed."""

    def __init__(
        self, values: Form, sources: Sequence[str], on_change: Callable[[], Any], *, read_only: bool = False
    ) -> None:
        self._inputs: dict[str, Input] = {}
        self._sources = sources
        self._on_change = on_change
        self._is_read_only = read_only
        self._kept = dict(values)  # of fields without an input

    @property
    def values(self) -> dict[str, str | bool]:
        return self._kept | {name: self._value(name) for name in self._inputs}

    def _value(self, name: str) -> str | bool:
        value = cast(Any, self._inputs[name]).value
        return value if isinstance(value, bool) else "" if value is None else str(value).replace("\0", "")

    def fill(self, values: Form) -> None:
        self._kept |= {name: value for name, value in values.items() if name not in self._inputs}
        for name, value in values.items():
            if name in self._inputs and self._value(name) != value:
                self._allow(name, value)
                cast(Any, self._inputs[name]).set_value(value)

    def _allow(self, name: str, value: str | bool) -> None:
        """A choice shows a stored value, too, that is not among those it knows."""
        field = self._inputs[name]
        if isinstance(field, ui.select):
            choice = cast(Any, field)
            options = cast(dict[str, str], choice.options)
            if value not in options:
                choice.set_options({**options, str(value): str(value)})

    def build_query(self) -> ui.codemirror:
        """The source, the transform and the editor."""
        editor = ui.codemirror(str(self._kept["source_query"]), language="PostgreSQL", theme="basicLight", indent="  ")
        editor.classes("v-editor")
        self._add("source_query", editor)
        with parts.box("v-fields v-pad"):
            if len(self._sources) > 1:
                self._select("source", texts.FIELD_SOURCE, {name: name for name in self._sources})
            self._select("python_task", texts.FIELD_TRANSFORM, {"": texts.NO_TRANSFORM})
        return editor

    def offer_transforms(self, names: Sequence[str]) -> None:
        field = cast(Any, self._inputs["python_task"])
        chosen = self._value("python_task")
        field.set_options({"": texts.NO_TRANSFORM} | {name: name for name in (*names, *([chosen] if chosen else []))})

    def build_mart(self) -> None:
        with parts.box("v-fields v-pad"):
            self._text("name", texts.FIELD_NAME)
            self._text("target_table", texts.FIELD_TARGET, placeholder=texts.TARGET_DEFAULT)
            self._text("key_columns", texts.FIELD_KEY, placeholder=texts.KEY_EXAMPLE)
            self._select("mode", texts.FIELD_MODE, texts.MODES)
            self._text("incremental_key", texts.FIELD_CURSOR)
            self._text("incremental_id_key", texts.FIELD_TIE)
        cast(Any, self._inputs["mode"]).on_value_change(self._show_cursor)
        self._show_cursor()

    def _show_cursor(self) -> None:
        for name in ("incremental_key", "incremental_id_key"):
            self._inputs[name].set_visibility(self._value("mode") == Mode.INCREMENTAL)

    def build_runs(self) -> None:
        with parts.box("v-fields v-pad"):
            self._text("schedule_interval", texts.FIELD_SCHEDULE, placeholder=texts.SCHEDULE_EXAMPLE)
            self._text("after", texts.FIELD_AFTER, placeholder=texts.AFTER_EXAMPLE)
            self._text("batch_size", texts.FIELD_BATCH)
            self._add("enabled", ui.checkbox(texts.FIELD_ENABLED, value=bool(self._kept["enabled"])))

    def build_more(self) -> None:
        with parts.box("v-fields v-pad"):
            self._text("owner", texts.FIELD_OWNER)
            self._text("tags", texts.FIELD_TAGS, placeholder=texts.TAGS_EXAMPLE)
            self._area("description", texts.FIELD_DESCRIPTION)
            self._area("options", texts.FIELD_OPTIONS, placeholder=texts.OPTIONS_EXAMPLE).classes("v-code-area")

    def build_checks(self) -> None:
        with parts.box("v-fields v-pad"):
            self._area("checks", texts.FIELD_CHECKS, placeholder=texts.CHECKS_EXAMPLE).classes("v-code-area")

    def _text(self, name: str, label: str, *, placeholder: str = "") -> None:
        field = ui.input(label, placeholder=self._example(placeholder), value=str(self._kept[name]))
        field.props('dense outlined stack-label autocomplete="off" spellcheck="false"')
        self._add(name, field)

    def _example(self, text: str) -> str:
        """Beside values that cannot be changed, an example would be read as one of them."""
        return "" if self._is_read_only else text

    def _area(self, name: str, label: str, *, placeholder: str = "") -> ui.textarea:
        field = ui.textarea(label, placeholder=self._example(placeholder), value=str(self._kept[name]))
        field.props('dense outlined stack-label autogrow spellcheck="false"').classes("v-wide")
        self._add(name, field)
        return field

    def _select(self, name: str, label: str, options: dict[str, str]) -> None:
        value = str(self._kept[name])
        field = ui.select({value: value} | options, label=label, value=value)
        field.props("dense outlined stack-label options-dense")
        self._add(name, field)

    def _add(self, name: str, field: Input) -> None:
        self._inputs[name] = field
        field.props["data-field"] = name
        if self._is_read_only:
            # texts can still be selected and copied
            field.props("disable" if isinstance(field, ui.checkbox | ui.codemirror) else "readonly")
        cast(Any, field).on_value_change(self._on_change)


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


TABLES_PER_PAGE = 100
MAX_TABLES = 500
"""Each is sent to the browser with its columns, once."""


def first_tables(context: Context, source: str) -> list[TableBody]:
    """The first tables of a source, as the API lists them page by page."""
    found: list[TableBody] = []
    after = ""
    while len(found) < MAX_TABLES:
        page = checks.list_tables(context, source, after=after, limit=TABLES_PER_PAGE)
        found += page.items
        if page.next is None:
            break
        after = page.next
    return found


class Names:
    """What the inputs offer."""

    def __init__(self, viewer: Viewer, views: Views) -> None:
        self._viewer = viewer
        self._views = views
        self._tables: dict[str, list[TableBody]] = {}
        self._completed: Sequence[TableBody] = ()  # what the editor completes
        self._produced: Sequence[str] = ()

    def build(self) -> None:
        self._suggestions = Suggestions(self._choose)

    async def load(self) -> None:
        """Called when the page is shown already."""
        found = await self._viewer.call(checks.list_transforms)
        if found is not None:
            self._views.form.offer_transforms([one.name for one in found.items if one.kind != "reader"])
        await self.show(())

    async def show(self, produced: Sequence[str]) -> None:
        """Offer the names of the chosen source. `produced`: columns of the query; empty: not known."""
        if self._views.is_read_only:
            return
        self._produced = produced
        source = str(self._views.form.values["source"])
        if source not in self._tables:
            self._tables[source] = []
            try:
                with suppress(VitrineError):  # the checks report a source that does not respond
                    self._tables[source] = await self._viewer.attempt(first_tables, source)
            except psycopg.Error:  # the store does not respond: the next check asks again
                del self._tables[source]
                return
        tables = self._tables[source]
        if tables is not self._completed:
            self._completed = tables
            self._views.query_help.complete([_for_completion(one) for one in tables])
            if len(tables) >= MAX_TABLES:
                self._viewer.tell(texts.SHOWN_TABLES.format(count=len(tables)))
        self._suggest(tables)

    def _suggest(self, tables: Sequence[TableBody]) -> None:
        values = self._views.form.values
        query = str(values["source_query"])
        self._suggestions.show(
            [
                one
                for one in drafts.suggest_keys(query, tables, self._produced)
                if ", ".join(one.columns) != values["key_columns"]
            ],
            [
                one
                for one in drafts.suggest_cursors(query, tables, self._produced)
                if one.column != values["incremental_key"] or values["mode"] != Mode.INCREMENTAL
            ],
        )

    def _choose(self, suggested: KeySuggestion | CursorSuggestion) -> None:
        if isinstance(suggested, KeySuggestion):
            self._views.form.fill({"key_columns": ", ".join(suggested.columns)})
        else:
            self._choose_cursor(suggested)

    def _choose_cursor(self, cursor: CursorSuggestion) -> None:
        chosen = {"mode": "incremental", "incremental_key": cursor.column, "incremental_id_key": cursor.id_column}
        key = {} if self._views.form.values["key_columns"] else {"key_columns": cursor.id_column}
        self._views.form.fill(chosen | key)


def _for_completion(one: TableBody) -> dict[str, Any]:
    return {
        "schema": one.schema_name,
        "name": one.name,
        "kind": one.kind,
        "columns": [{"name": column.name, "type": column.type} for column in one.columns],
    }
