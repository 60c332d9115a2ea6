"""Says that a file manages a definition, and lets an administrator edit it in the console all the same."""

from vitrine.console import parts, texts
from vitrine.console.viewer import Viewer
from vitrine.service import definitions
from vitrine.service.bodies.pipelines import ManagedByBody


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
