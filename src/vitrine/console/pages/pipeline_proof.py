"""What is known about the rows of a mart: checks, the last reconcile, the quarantine."""

from nicegui.element import Element

from vitrine.console import parts, texts
from vitrine.console.pages.pipeline_parts import table_row, titled_card
from vitrine.console.viewer import Viewer
from vitrine.service import control
from vitrine.service.bodies.checks import RejectPage
from vitrine.service.bodies.pipelines import PipelineBody
from vitrine.service.bodies.reconciliation import KeysBody, ReconcileBody, StoredReportBody
from vitrine.service.bodies.runs import StatusBody
from vitrine.service.roles import Role

SHOWN_REJECTS = 20

SHOWN_KEYS = 20


class ChecksCard:
    """What the checks of the pipeline have found in the rows of its last run."""

    def __init__(self) -> None:
        card, _ = titled_card(texts.CHECKS)
        self._card = card
        with card:
            self._box = parts.box("v-pad v-stack")
        card.set_visibility(False)
        self._shown: object = None

    def show(self, pipeline: PipelineBody, status: StatusBody) -> None:
        results = status.last_run.checks if status.last_run else None
        names = [check.label for check in pipeline.checks]
        if (names, results) == self._shown:
            return
        self._shown = (names, results)
        self._card.set_visibility(bool(names or results))
        self._box.clear()
        with self._box:
            if results is None:
                parts.text(texts.ROWS_NOT_CHECKED.format(names=", ".join(names)), "v-muted", tag="p")
            for one in results or ():
                tone = "success" if one.passed else "failed" if one.severity == "fail" else "late"
                with parts.box():
                    with parts.box("v-row"):
                        parts.badge(texts.PASSED if one.passed else texts.BROKEN[one.severity], tone)
                        parts.text(one.name, tag="strong")
                    if one.text:
                        parts.text(one.text, "v-sub")


class ReconcileCard:
    """The last deep reconcile, with the keys that differ."""

    def __init__(self, viewer: Viewer, name: str) -> None:
        self._viewer = viewer
        self._name = name
        card, head = titled_card(texts.RECONCILE)
        with card:
            self._box = parts.box("v-pad v-stack")
        if viewer.may(Role.OPERATOR):
            with head:
                parts.box("v-grow")
                parts.button(texts.VERIFY, self._verify)
                parts.button(texts.REPAIR, self._repair)
        self._shown: tuple[StoredReportBody | None] | None = None  # None: not known yet

    def show(self, report: StoredReportBody | None) -> None:
        if self._shown == (report,):
            return
        self._shown = (report,)
        self._box.clear()
        with self._box:
            if report is None:
                parts.text(texts.NO_RECONCILE, "v-muted", tag="p")
                return
            found = report.report
            with parts.box("v-row"):
                parts.badge(*((texts.EQUAL, "success") if found.equal else (texts.DIFFERENT, "failed")))
                parts.when(report.finished_at, age=True).classes("v-muted")
            parts.text(found.sentence, tag="p")
            _keys(texts.MISSING_KEYS, found.missing)
            _keys(texts.EXTRA_KEYS, found.extra)
            _keys(texts.DIFFERENT_KEYS, found.different, found.different.columns)

    async def _verify(self) -> None:
        done = texts.REQUESTED.format(pipeline=self._name)
        await self._viewer.act(done, control.request_reconcile, self._name, ReconcileBody(deep=True))

    async def _repair(self) -> None:
        title = texts.REPAIR_TITLE.format(target=self._name)
        if await parts.confirm(title, texts.REPAIR_EXPLAINED, texts.REPAIR, danger=True):
            done = texts.REQUESTED.format(pipeline=self._name)
            await self._viewer.act(done, control.request_reconcile, self._name, ReconcileBody(repair=True))


def _keys(label: str, keys: KeysBody, columns: dict[str, list[str]] | None = None) -> None:
    if not keys.count:
        return
    with parts.box("v-keys"):
        parts.text(f"{label}: {keys.count:,}", tag="strong")
        for key in keys.keys[:SHOWN_KEYS]:
            named = f"{key} ({', '.join((columns or {}).get(key, []))})" if columns else key
            parts.text(named, "v-mono")
        if keys.count > SHOWN_KEYS:
            parts.text(texts.KEYS_MORE.format(count=f"{keys.count - SHOWN_KEYS:,}"), "v-muted")


class RejectsCard:
    """Rows in quarantine, without their values."""

    def __init__(self, viewer: Viewer, name: str) -> None:
        self._viewer = viewer
        self._name = name
        card, head = titled_card(texts.REJECTS)
        with card:
            self._box = parts.box()
        with head:
            parts.box("v-grow")
            self._replay = parts.button(texts.REPLAY, self._start_replay)
            self._replay.set_visibility(False)
        self._shown: RejectPage | None = None

    def show(self, page: RejectPage) -> None:
        if page == self._shown:
            return
        self._shown = page
        self._replay.set_visibility(bool(page.items) and self._viewer.may(Role.OPERATOR))
        self._box.clear()
        with self._box:
            if not page.items:
                parts.text(texts.NO_REJECTS, "v-muted v-pad", tag="p")
                return
            parts.text(texts.REJECTS_HELP, "v-muted v-pad", tag="p")
            with _scrolled(), parts.box("v-table v-rejects", tag="table"):
                # a constraint of the whole row names no column
                named = any(one.column for one in page.items)
                with parts.box(tag="thead"):
                    table_row((texts.KEY, *([texts.COLUMN] if named else []), texts.REASON), tag="th")
                with parts.box(tag="tbody"):
                    for one in page.items:
                        table_row((one.key, *([one.column or "–"] if named else []), one.reason))
            if page.next is not None:
                parts.prose(texts.MORE_REJECTS.format(count=SHOWN_REJECTS), "v-muted v-pad")

    async def _start_replay(self) -> None:
        await self._viewer.act(texts.REQUESTED.format(pipeline=self._name), control.replay_rejects, self._name)


def _scrolled() -> Element:
    """A key or a reason may be long, and a page of them must not hide what follows."""
    made = parts.box("v-rejects-box")
    made.props["tabindex"] = "0"
    made.props["role"] = "region"
    made.props["aria-label"] = texts.REJECTS
    return made
