"""`python -m bench.timed_run NAME`: one `vitrine run NAME` without the start of the interpreter.

With further arguments, `vitrine ARGUMENT NAME ARGUMENTS` instead.
"""

import contextlib
import json
import sys
import time

from bench.memory import peak_mb
from vitrine.cli import main as vitrine


def main() -> None:
    """Warm up, write `ready`, wait for a line on stdin, run the pipeline, write a JSON object.

    The Python of any tree executes this, so it imports nothing of Vitrine but the entry point of the command line. The
    run of NAME_warm_up imports all modules that the timed run needs.
    """
    name, *command = sys.argv[1:]
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        _run(f"{name}_warm_up", "run")
        if command:
            _run(f"{name}_warm_up", *command)
        answers.write("ready\n")
        answers.flush()
        sys.stdin.readline()
        began, began_processor = time.perf_counter(), time.process_time()
        _run(name, *(command or ["run"]))
        seconds, processor = time.perf_counter() - began, time.process_time() - began_processor
    json.dump({"seconds": seconds, "processor_seconds": processor, "peak_mb": peak_mb()}, answers)


def _run(name: str, command: str, *options: str) -> None:
    sys.argv = ["vitrine", command, name, *options]
    try:
        vitrine()
    except SystemExit as exc:
        if exc.code:
            raise


if __name__ == "__main__":
    main()
