"""The command `vitrine`: the only place that builds objects and passes them to the others."""

import sys

from vitrine.cli import exit_codes, process


def main() -> None:
    """Run the command line; every known error is one sentence on stderr and exit code 1."""
    try:
        _run()
    except KeyboardInterrupt:  # also while modules are imported, which takes a part of a second
        sys.exit(exit_codes.INTERRUPTED)


def _run() -> None:
    process.shorten_start_and_exit()
    from vitrine.cli.app import command_line
    from vitrine.errors import VitrineError

    arguments = sys.argv[1:]
    if process.completes():
        from vitrine.cli.arguments import prepare_completion

        prepare_completion()
        arguments = []
    try:
        command_line(arguments)(prog_name="vitrine")  # also for `python -m vitrine`, and for completion
    except VitrineError as exc:
        from vitrine.cli import output

        process.stop(output.with_excerpt(exc), lines=True)
    except Exception:  # noqa: BLE001 – Python would write its text, which may quote a row, to the terminal as it is
        process.fail_unexpectedly()
