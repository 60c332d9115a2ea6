"""The distribution of tests/plugins, installed as a user would install it, and seen by this process."""

import importlib
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from vitrine.definition import connectors

MEMORY_CONNECTOR = Path(__file__).parents[1] / "plugins" / "memory_connector"


def install(distribution: Path, folder: Path) -> Path:
    """Build and install a distribution into a folder, without network."""
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(distribution)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@contextmanager
def installed(folder: Path) -> Generator[None]:
    """Inside, the connectors of this folder are installed in this process, and afterwards not any more."""
    sys.path.insert(0, str(folder))
    _look_again()
    before = set(sys.modules)
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]
        _look_again()


def _look_again() -> None:
    importlib.invalidate_caches()
    connectors.installed.cache_clear()
    connectors.every_option.cache_clear()
