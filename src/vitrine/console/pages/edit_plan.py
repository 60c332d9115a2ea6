"""The plan of a change: what the typed definition would do to the live mart."""

from collections.abc import Sequence

from vitrine.console import parts, texts
from vitrine.service.bodies.plans import ColumnChangeBody, PlanBody, RunPlanBody

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
