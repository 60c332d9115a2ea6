"""The inputs of the page that edits a definition: a form, or the whole definition as YAML."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from nicegui import ui

from vitrine.console import parts, texts
from vitrine.console.drafts import Form
from vitrine.model import Mode

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
