"""Names that configuration may use: nothing is ever imported from stored text."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from vitrine.errors import ConfigError
from vitrine.model import Row

Part = TypeVar("Part")


class Registry(Generic[Part]):
    """Parts of one kind by name. The package's own modules register themselves by being imported."""

    def __init__(self, kind: str, package: str, entry_point_group: str) -> None:
        self._kind = kind
        self._package = package
        self._group = entry_point_group
        self._parts: dict[str, Part] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[Part], Part]:
        def add(part: Part) -> Part:
            if self._parts.get(name, part) is not part:
                raise ConfigError(f"two {self._kind}s are named '{name}'", code="DUPLICATE_NAME")
            self._parts[name] = part
            return part

        return add

    def load(self, modules: Iterable[str] = ()) -> None:
        """Import what is installed: the package's own modules, entry points, and modules named by the settings."""
        if not self._loaded:
            package = importlib.import_module(self._package)
            for module in pkgutil.iter_modules(package.__path__, f"{self._package}."):
                importlib.import_module(module.name)
            for point in entry_points(group=self._group):
                point.load()
            self._loaded = True
        for name in modules:
            try:
                importlib.import_module(name)
            except ImportError as exc:
                raise ConfigError(
                    f"cannot import '{name}' named by VITRINE_TRANSFORM_MODULES: {exc}", code="SETTINGS"
                ) from exc

    def names(self) -> list[str]:
        self.load()
        return sorted(self._parts)

    def get(self, name: str) -> Part:
        self.load()
        if name not in self._parts:
            installed = ", ".join(self.names()) or "none"
            raise ConfigError(f"unknown {self._kind} '{name}'; installed: {installed}", code="UNKNOWN_TASK")
        return self._parts[name]


RowTransform = Callable[[Sequence[Row]], Sequence[Row]]

transforms: Registry[RowTransform] = Registry("transform", "vitrine.transforms", "vitrine.transforms")
