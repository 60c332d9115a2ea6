"""NiceGUI is imported by the API process only: the other commands must start quickly, and a runner must stay small."""

import subprocess
import sys

import pytest

CODE = """
import sys, importlib, pkgutil
import vitrine.{name}
for found in pkgutil.walk_packages(vitrine.{name}.__path__, "vitrine.{name}."):
    importlib.import_module(found.name)
print([name for name in ("nicegui", "socketio", "aiohttp") if name in sys.modules])
"""


@pytest.mark.parametrize("name", ["cli", "runner", "api", "operations"])
def test_no_other_part_imports_nicegui(name: str) -> None:
    code = CODE.format(name=name)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.strip() == "[]"
