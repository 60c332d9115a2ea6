"""The short commands of the tests are forks of one process, and behave as new processes do."""

import signal
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.helpers import command_server
from tests.helpers.processes import environment, started, vitrine
from tests.helpers.waiting import wait_until


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["list"], ["unknown"], ["apply", "genres.yaml", "--dry-run"], ["schema"], ["status", "--json"]],
    ids=" ".join,
)
def test_a_fork_answers_as_a_new_process_does(
    arguments: list[str], database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = "source_query: SELECT id FROM content.genre\ntarget_table: analytics.genres\nkey_columns: [id]\n"
    (tmp_path / "genres.yaml").write_text(f"name: genres\n{fields}", "utf-8")
    env = environment(database_url)
    assert command_server.can_run(env)
    forked = vitrine(*arguments, folder=tmp_path, env=env)
    monkeypatch.setattr(command_server, "can_run", Mock(return_value=False))
    new = vitrine(*arguments, folder=tmp_path, env=env)
    assert (forked.returncode, forked.stdout, forked.stderr) == (new.returncode, new.stdout, new.stderr)


def test_a_command_that_takes_too_long_is_killed(database_url: str, tmp_path: Path) -> None:
    with (tmp_path / "output").open("w+") as output:
        streams = (output.fileno(), output.fileno(), output.fileno())
        with pytest.raises(subprocess.TimeoutExpired):
            command_server.run(["runner"], tmp_path, environment(database_url), streams, seconds=0.5)
        assert command_server.run(["--version"], tmp_path, environment(None), streams, seconds=60) == 0


def test_a_service_is_a_fork_that_receives_signals_and_reports_its_end(database_url: str, tmp_path: Path) -> None:
    with started(["runner"], tmp_path, environment(database_url)) as one:
        assert isinstance(one.process, command_server.Fork)
        wait_until(lambda: "runner started" in one.output(), what="the start of the runner")
        assert one.process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            one.process.wait(0.05)
        assert one.stop() == 0
        assert (one.process.poll(), one.process.returncode) == (0, 0)
    with started(["runner"], tmp_path, environment(database_url)) as killed:
        killed.process.kill()
        assert killed.process.wait(20) == -signal.SIGKILL
        killed.process.terminate()  # it has ended: no other process may get its signal
    with started(["runner"], tmp_path, environment(database_url), new=True) as new:
        assert isinstance(new.process, subprocess.Popen)


def test_variables_of_the_interpreter_need_a_new_process() -> None:
    env = environment(None)
    assert command_server.can_run({**env, "VITRINE_API_URL": "http://127.0.0.1:1"})
    assert not command_server.can_run({**env, "PYTHONPATH": "elsewhere"})
    assert not command_server.can_run({**env, "LC_ALL": "C"})
