"""The jobs of each peer: a first load of a table, and a merge of later changes."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from bench.peers import environments


@dataclass(frozen=True)
class Job:
    """From one database to another, by TCP."""

    source: str
    target: str
    source_table: str
    target_table: str
    home: Path  # for the files and the state of the peer


class Peer(ABC):
    name: str

    def __init__(self) -> None:
        self.folder = environments.ensure(self.name)

    @abstractmethod
    def load(self, job: Job) -> None: ...

    @abstractmethod
    def merge(self, job: Job, since: str) -> None:
        """After a `load` of the same job: merge the rows with a `modified` after `since` by `id`."""

    def environment(self, job: Job) -> dict[str, str]:
        return {"HOME": str(job.home), "PATH": "/usr/bin:/bin", "TMPDIR": str(job.home)}


class Ingestr(Peer):
    """`ingestr ingest`: replace for a first load, merge by primary key for changes."""

    name = "ingestr"

    def load(self, job: Job) -> None:
        self._ingest(job, "--incremental-strategy", "replace", "--primary-key", "id")

    def merge(self, job: Job, since: str) -> None:
        """ingestr keeps no position: without an interval it reads the whole table again."""
        keys = ("--incremental-key", "modified", "--primary-key", "id")
        start = since.partition(".")[0].partition("+")[0].replace(" ", "T")
        self._ingest(job, "--incremental-strategy", "merge", *keys, "--interval-start", start)

    def environment(self, job: Job) -> dict[str, str]:
        return super().environment(job) | {"DISABLE_TELEMETRY": "true", "INGESTR_DISABLE_TELEMETRY": "true"}

    def _ingest(self, job: Job, *options: str) -> None:
        command = [str(self.folder / "bin" / "ingestr"), "ingest", "--yes", "--progress", "log"]
        command += ["--source-uri", f"{job.source}?sslmode=disable", "--source-table", job.source_table]
        command += ["--dest-uri", f"{job.target}?sslmode=disable", "--dest-table", job.target_table, *options]
        environments.run(command, self.environment(job), job.home)


class Sling(Peer):
    """`sling run`: full-refresh for a first load, incremental with a key for changes."""

    name = "sling"

    def load(self, job: Job) -> None:
        self._run(job, "--mode", "full-refresh", "--primary-key", "id")

    def merge(self, job: Job, since: str) -> None:
        self._run(job, "--mode", "incremental", "--primary-key", "id", "--update-key", "modified")

    def environment(self, job: Job) -> dict[str, str]:
        return super().environment(job) | {
            "SLING_HOME_DIR": str(job.home / "sling"),
            "SLING_DISABLE_TELEMETRY": "true",
            "BENCH_SOURCE": f"{job.source}?sslmode=disable",
            "BENCH_TARGET": f"{job.target}?sslmode=disable",
        }

    def _run(self, job: Job, *options: str) -> None:
        program = next(self.folder.glob("lib/python*/site-packages/sling_linux_amd64/bin/sling-linux-amd64"))
        command = [str(program), "run", "--src-conn", "BENCH_SOURCE", "--src-stream", job.source_table]
        command += ["--tgt-conn", "BENCH_TARGET", "--tgt-object", job.target_table, *options]
        environments.run(command, self.environment(job), job.home)


class Dlt(Peer):
    """A dlt pipeline with sql_table and the fastest documented options, in `dlt_job.py`."""

    name = "dlt"

    def load(self, job: Job) -> None:
        self._run(job, "replace")

    def merge(self, job: Job, since: str) -> None:
        self._run(job, "merge")

    def environment(self, job: Job) -> dict[str, str]:
        return super().environment(job) | {"RUNTIME__DLTHUB_TELEMETRY": "false", "RUNTIME__LOG_LEVEL": "ERROR"}

    def _run(self, job: Job, disposition: str) -> None:
        script = str(Path(__file__).parent / "dlt_job.py")
        arguments = [disposition, job.source, job.target, job.source_table, job.target_table, str(job.home / "dlt")]
        environments.run([str(self.folder / "bin" / "python"), script, *arguments], self.environment(job), job.home)


PEERS: tuple[type[Peer], ...] = (Ingestr, Dlt, Sling)
