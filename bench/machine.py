"""The machine and the versions that the figures belong to."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

from bench.database import Connection


def facts(connection: Connection) -> dict[str, object]:
    """Machine, versions, and the load when the benchmark began."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(_memory_kib() / 1024 / 1024, 1),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "postgres": connection.info.parameter_status("server_version"),
        "psycopg": version("psycopg"),
        "vitrine": version("vitrine-etl"),
        "load_average_before": round(os.getloadavg()[0], 1),
    }


def _memory_kib() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("MemTotal")))


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
