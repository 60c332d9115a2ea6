"""The command `rollback`."""

import sys
from typing import TYPE_CHECKING

from vitrine.cli import carrying_out, exit_codes, output, process
from vitrine.cli.arguments import Name

if TYPE_CHECKING:
    from vitrine.service.bodies.runs import RequestBody


def rollback(name: Name) -> None:
    """Make the previous generation of a mart visible again.

    With its checkpoint; the pipeline is paused. Carried out by the first runner that is free, or by this process. Exit
    code 0 done, 1 refused or failed, 3 paused or interrupted before it was done.
    """
    _report(carrying_out.request(name, "rollback", lambda control: control.roll_back(name)))


def _report(request: "RequestBody") -> None:
    """Print how the request ended, and exit."""
    from vitrine.cli import backends

    name = request.pipeline
    if request.state == "failed":
        run = request.run
        reason = (
            f" ({run.error_code}): {run.error_message}"
            if run
            else f": the run before it failed; `vitrine rollback {name}` goes back now"
        )
        process.stop(f"'{name}' was not rolled back{reason}")
    if request.state != "succeeded":
        output.show(f"{name}: the rollback is {request.state}; it is carried out when a runner takes it")
        sys.exit(exit_codes.PAUSED)
    with backends.opened() as backend:
        now = backend.history.status(name)
    fresh = f" and shows the data as of {now.fresh_as_of:%Y-%m-%d %H:%M:%S %Z}" if now.fresh_as_of else ""
    output.show(
        f"{name}: the previous generation is live again{fresh}; the pipeline is {now.status}, `vitrine run {name}`"
        " resumes it"
    )
