"""Memory of a process."""

from pathlib import Path


def peak_mb(process: int | str = "self") -> float:
    """VmHWM, the largest resident set that the process ever had."""
    return _megabytes(process, "VmHWM")


def resident_mb(process: int | str = "self") -> float:
    """VmRSS, the resident set that it has now."""
    return _megabytes(process, "VmRSS")


def _megabytes(process: int | str, name: str) -> float:
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name))) / 1024
