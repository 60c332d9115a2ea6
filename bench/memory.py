"""Peak memory of a process."""

from pathlib import Path


def peak_mb(process: int | str = "self") -> float:
    """VmHWM, the largest resident set that the process ever had."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024
