"""The command `vitrine`: the only place that builds objects and passes them to the others."""

import sys

from vitrine.cli import process


def main() -> None:
    """Run the command line; every known error is one sentence on stderr and exit code 1."""
    process.shorten_start_and_exit()
    from vitrine.cli import output
    from vitrine.cli.app import app
    from vitrine.errors import VitrineError

    try:
        app()
    except VitrineError as exc:
        process.stop(output.with_excerpt(exc))
    except KeyboardInterrupt:
        sys.exit(process.INTERRUPTED)
