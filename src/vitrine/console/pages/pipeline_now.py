"""What a pipeline does now: progress of its run, its error, its checkpoint."""

from vitrine.console import origins, parts, texts
from vitrine.console.pages.pipeline_parts import fact, iso, text_fact, titled_card
from vitrine.service.bodies.runs import StatusBody
from vitrine.service.bodies.state import StateBody
from vitrine.status import Status


class ProgressCard:
    """The run under way."""

    def __init__(self) -> None:
        with parts.box("v-card v-pad v-progress", tag="section") as self._card:
            self._card.props["aria-label"] = texts.PROGRESS
            with parts.box("v-row"):
                self._title = parts.text(texts.PROGRESS, tag="strong")
                self._percent = parts.text("", "v-value")
                parts.box("v-grow")
                self._runner = parts.text("", "v-muted")
            with parts.box("v-bar") as self._bar:
                self._fill = parts.box("v-fill")
            self._bar.props["role"] = "progressbar"
            self._bar.props["aria-label"] = texts.PROGRESS
            self._facts = parts.text("", "v-muted", tag="p")
        self._card.set_visibility(False)

    def show(self, status: StatusBody) -> None:
        progress, run = status.progress, status.last_run
        if self._card.visible != (progress is not None):
            self._card.set_visibility(progress is not None)
        if progress is None or run is None:
            return
        percent = progress.percent
        parts.set_text(self._title, texts.KINDS.get(run.kind, run.kind))
        parts.set_text(self._percent, f"{percent:.0f} %" if percent is not None else "")
        parts.set_text(self._runner, texts.ON_RUNNER.format(runner=run.runner))
        parts.set_attribute(self._bar, "aria-valuenow", f"{percent or 0:.0f}")
        parts.set_attribute(self._fill, "style", f"width: {percent:.1f}%" if percent is not None else "width: 100%")
        parts.set_attribute(self._fill, "data-unknown", "true" if percent is None else "false")
        rows = f"{progress.rows_read:,}"
        facts = [
            texts.PROGRESS_ROWS.format(read=rows, expected=f"{progress.rows_expected:,}")
            if progress.rows_expected
            else texts.PROGRESS_ROWS_UNKNOWN.format(read=rows),
            texts.BATCHES.format(count=run.batches),
        ]
        if progress.rows_per_second:
            facts.append(texts.RATE.format(rate=f"{progress.rows_per_second:,.0f}"))
        if progress.seconds_left is not None:
            facts.append(texts.TIME_LEFT.format(left=parts.duration(progress.seconds_left)))
        parts.set_text(self._facts, " · ".join(facts))


class ErrorCard:
    """Why the last run failed: the sentence with its remedy, the side it comes from, and a button to copy it."""

    def __init__(self) -> None:
        self._shown: object = None
        self._box = parts.box()

    def show(self, status: StatusBody) -> None:
        error = status.last_error
        if error == self._shown:
            return
        self._shown = error
        self._box.clear()
        if error is None:
            return
        with self._box, parts.box("v-card v-pad v-error", tag="section") as card:
            card.props["aria-label"] = texts.ERROR
            with parts.box("v-row"):
                parts.text(texts.ERROR, tag="strong")
                parts.badge(origins.origin_of(error.code, error.message), "failed")
                parts.text(error.code, "v-mono v-muted")
                parts.when(error.at, age=True).classes("v-muted")
            with parts.box("v-code-box"):
                parts.text(error.message, "v-error-text", tag="p")
                parts.copy_button(f"{status.pipeline}: {error.code}: {error.message}")
            if status.status is Status.FAILED:
                parts.text(texts.ERROR_REMEDY, "v-muted", tag="p")


class CheckpointCard:
    def __init__(self) -> None:
        card, _ = titled_card(texts.CHECKPOINT)
        with card:
            self._box = parts.box("v-pad")
        self._shown: StateBody | None = None

    def show(self, state: StateBody) -> None:
        if state == self._shown:
            return
        self._shown = state
        self._box.clear()
        with self._box:
            if state.cursor is None and not state.generation:
                parts.text(texts.NO_CHECKPOINT, "v-muted", tag="p")
                return
            with parts.box("v-facts v-narrow", tag="dl"):
                if state.cursor:
                    text_fact(texts.CURSOR).set_text(", ".join(state.cursor))
                if state.generation:
                    generation = str(state.generation)
                    if state.generation_open:
                        rows = f"{state.generation_rows:,}"
                        generation = texts.GENERATION_OPEN.format(generation=generation, rows=rows)
                    text_fact(texts.GENERATION).set_text(generation)
                text_fact(texts.BATCH_SEQ).set_text(f"{state.batch_seq:,}")
                if state.horizon_blocker:
                    text_fact(texts.HELD_BACK).set_text(state.horizon_blocker)
                fact(texts.SAVED_AT).set(iso(state.updated_at))
