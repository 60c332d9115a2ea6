"""Commands that remove something, and ask before: reset, delete."""

from typing import TYPE_CHECKING, Annotated

import typer

from vitrine.cli import backends, output
from vitrine.cli.arguments import AsJson, Name, Yes
from vitrine.cli.questions import confirm

if TYPE_CHECKING:
    from vitrine.service.bodies.state import StateBody


def reset(
    name: Name,
    to: Annotated[
        str | None,
        typer.Option(
            help="Only go back to this value of the cursor column, instead of forgetting the checkpoint.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Forget the checkpoint, so that the next run reads everything.

    The mart stays as it is. With --to, the next run reads again from that value on.
    """
    from vitrine.service.bodies.state import StateChange

    with backends.opened() as backend:
        state = backend.history.state(name)
        confirm(_question(state, to), yes=yes)
        change = StateChange(action="reset") if to is None else StateChange(action="rewind", value=to)
        changed = backend.history.change_state(name, change)
    if as_json:
        output.show_body(changed)
    elif to is None:
        output.show(
            f"{changed.pipeline}: the checkpoint is forgotten; `vitrine run {changed.pipeline}` reads everything"
        )
    else:
        output.show(f"{changed.pipeline}: the checkpoint is {' / '.join(changed.cursor or ())}")


def _question(state: "StateBody", to: str | None) -> str:
    present = f" (it is {' / '.join(state.cursor)})" if state.cursor else ""
    unfinished = " and its unfinished full load" if state.generation_open else ""
    if to is None:
        return f"Forget the checkpoint of '{state.pipeline}'{present}{unfinished}? Its next run then reads everything."
    return f"Set the checkpoint of '{state.pipeline}'{present} back to {to}? Its next run then reads again from there."


def delete(
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Also during a run: its current batch is rolled back.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete a pipeline with its history; its mart stays."""
    from vitrine.errors import VitrineError

    with backends.opened() as backend:
        try:
            pipeline = backend.definitions.get(name)
        except VitrineError as exc:
            if exc.code != "DEFINITION_INVALID":
                raise
            key, mart = name, "its mart"
        else:
            # by id: another pipeline may have taken the name while the question was open
            key, name, mart = str(pipeline.id), pipeline.name, pipeline.target_table
        confirm(
            f"Delete pipeline '{name}' with its checkpoint, its history and the rows in its quarantine ({mart} stays)?",
            yes=yes,
        )
        backend.definitions.delete(key, force=force)
    output.show(f"{name}: deleted; {mart} stays")
