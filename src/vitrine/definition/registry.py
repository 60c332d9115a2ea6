"""Registered transforms and readers by name: no code is ever imported from stored text."""

import importlib
import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import packages_distributions
from traceback import walk_tb
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, overload

from pydantic import BaseModel, ValidationError

from vitrine import input_errors
from vitrine.core.rows import Cursor, Row
from vitrine.definition.connectors import entry_points
from vitrine.definition.model import NAME
from vitrine.errors import ConfigError

# An extra, and slow to import: imported only by functions that work on frames
if TYPE_CHECKING:
    import polars as pl

PACKAGE = "vitrine.plan.builtin"
ENTRY_POINTS = "vitrine.transforms"

Function = TypeVar("Function", bound=Callable[..., Any])
TaskOptions = TypeVar("TaskOptions", bound=BaseModel)

RowTransform = Callable[[Sequence[Row]], Sequence[Row]]
RowTransformWith = Callable[[Sequence[Row], TaskOptions], Sequence[Row]]
FrameTransform = Callable[["pl.DataFrame"], "pl.DataFrame"]
FrameTransformWith = Callable[["pl.DataFrame", TaskOptions], "pl.DataFrame"]
Reader = Callable[[Cursor | None], Iterable[Row]]
ReaderWith = Callable[[Cursor | None, TaskOptions], Iterable[Row]]


class FieldError(Exception):
    """A transform refuses a row. Its text is shown to users: it names columns, and never contains values."""


class Kind(StrEnum):
    ROW = "row"
    FRAME = "frame"
    READER = "reader"


@dataclass(frozen=True)
class Task:
    """A registered function with its kind, options and columns."""

    name: str
    kind: Kind
    function: Callable[..., Any]
    options: type[BaseModel] | None  # None: it takes no options
    columns: tuple[tuple[str, str], ...] = ()  # of a reader: names and types of what it yields

    @property
    def summary(self) -> str:
        """The first line of its documentation."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    @property
    def origin(self) -> str:
        """The distribution that contains it, or its module if there is none."""
        module = self.function.__module__
        package = module.partition(".")[0]
        return next(iter(packages_distributions().get(package, ())), module) if package != "vitrine" else package

    def place_of(self, raised: BaseException) -> str | None:
        """File and line of the function's own module where an exception left it; None if it never was there.

        The text of the exception is not used anywhere: it may quote values of rows.
        """
        file = getattr(getattr(inspect.unwrap(self.function), "__code__", None), "co_filename", None)
        lines = [line for frame, line in walk_tb(raised.__traceback__) if frame.f_code.co_filename == file]
        return f"{'/'.join(self.function.__module__.split('.'))}.py:{lines[-1]}" if lines else None

    def validate(self, options: Mapping[str, Any]) -> "BoundTask":
        """The task with these options; ConfigError names each wrong one and the reason."""
        if self.options is None and options:
            raise ConfigError(f"'{self.name}' takes no options; remove {', '.join(options)}", code="TASK_OPTIONS")
        return BoundTask(self, self.options and self._validated(self.options, options))

    def _validated(self, model: type[BaseModel], options: Mapping[str, Any]) -> BaseModel:
        known = [field.alias or name for name, field in model.model_fields.items()]
        # the model of a user's task may ignore unknown fields, which would hide a misspelled option
        mistakes = [input_errors.unknown_field(("options", name), known) for name in options if name not in known]
        try:
            bound = model.model_validate({name: value for name, value in options.items() if name in known})
        except ValidationError as exc:
            mistakes += input_errors.explain(exc.errors(), model, inside=("options",))
        else:
            if not mistakes:
                return bound
        raise ConfigError("; ".join(f"'{self.name}': {one.sentence}" for one in mistakes), code="TASK_OPTIONS")


class BoundTask(NamedTuple):
    """A task with the options of one step."""

    task: Task
    options: BaseModel | None

    @property
    def name(self) -> str:
        return self.task.name

    def __call__(self, given: Any) -> Any:
        return self.task.function(given) if self.options is None else self.task.function(given, self.options)

    def fingerprint(self) -> str:
        """Equal for equal work: name and options."""
        return f"{self.name} {self.options.model_dump_json() if self.options else ''}"


class Registry:
    """Tasks of one sort, by name."""

    def __init__(self, sort: str) -> None:
        self._sort = sort
        self._tasks: dict[str, Task] = {}

    def add(self, task: Task) -> None:
        if not re.match(NAME, task.name):
            raise ConfigError(
                f"'{task.name}' is not a valid name for a {self._sort}; use a-z, 0-9 and _", code="BAD_NAME"
            )
        known = self._tasks.get(task.name)
        if known is not None and known.function is not task.function:
            raise ConfigError(f"two {self._sort}s are named '{task.name}'; rename one", code="DUPLICATE_NAME")
        self._tasks[task.name] = task

    def tasks(self) -> list[Task]:
        load()
        return [self._tasks[name] for name in sorted(self._tasks)]

    def names(self) -> list[str]:
        return [task.name for task in self.tasks()]

    def get(self, name: str) -> Task:
        load()
        if name not in self._tasks:
            installed = ", ".join(self.names()) or "none"
            raise ConfigError(f"unknown {self._sort} '{name}'; installed: {installed}", code="UNKNOWN_TASK")
        return self._tasks[name]


class Transforms(Registry):
    """Functions that transform lists of rows or polars frames."""

    @overload
    def register(self, name: str) -> Callable[[RowTransform], RowTransform]: ...

    @overload
    def register(
        self, name: str, *, options: type[TaskOptions]
    ) -> Callable[[RowTransformWith[TaskOptions]], RowTransformWith[TaskOptions]]: ...

    def register(self, name: str, *, options: type[BaseModel] | None = None) -> Callable[..., Any]:
        """Registers a function that takes and returns a list of rows (dictionaries)."""
        return self._registering(name, Kind.ROW, options)

    @overload
    def register_frame(self, name: str) -> Callable[[FrameTransform], FrameTransform]: ...

    @overload
    def register_frame(
        self, name: str, *, options: type[TaskOptions]
    ) -> Callable[[FrameTransformWith[TaskOptions]], FrameTransformWith[TaskOptions]]: ...

    def register_frame(self, name: str, *, options: type[BaseModel] | None = None) -> Callable[..., Any]:
        """Registers a function that takes and returns a polars frame; fast for work on whole columns."""
        return self._registering(name, Kind.FRAME, options)

    def _registering(self, name: str, kind: Kind, options: type[BaseModel] | None) -> Callable[[Function], Function]:
        def add(function: Function) -> Function:
            self.add(Task(name, kind, function, options))
            return function

        return add


class Readers(Registry):
    """Functions that yield the rows after a cursor, in the order of the cursor."""

    @overload
    def register(self, name: str, *, columns: Mapping[str, str]) -> Callable[[Reader], Reader]: ...

    @overload
    def register(
        self, name: str, *, columns: Mapping[str, str], options: type[TaskOptions]
    ) -> Callable[[ReaderWith[TaskOptions]], ReaderWith[TaskOptions]]: ...

    def register(
        self, name: str, *, columns: Mapping[str, str], options: type[BaseModel] | None = None
    ) -> Callable[..., Any]:
        """Registers a function that yields rows with these columns; each has a PostgreSQL type."""

        def add(function: Function) -> Function:
            self.add(Task(name, Kind.READER, function, options, tuple(columns.items())))
            return function

        return add


transforms = Transforms("transform")
readers = Readers("reader")

_loaded = False


def load(modules: Iterable[str] = ()) -> None:
    """Import the package's own modules, entry points, and the modules that the settings name."""
    global _loaded
    if not _loaded:
        package = importlib.import_module(PACKAGE)
        for module in pkgutil.iter_modules(package.__path__, f"{PACKAGE}."):
            importlib.import_module(module.name)
        for point in entry_points(group=ENTRY_POINTS):
            _import(point.load, f"entry point '{point.name}' ({point.value})")
        _loaded = True
    for name in modules:
        _import(lambda name=name: importlib.import_module(name), f"'{name}' named by VITRINE_TRANSFORM_MODULES")


def _import(work: Callable[[], Any], what: str) -> None:
    try:
        work()
    except (ImportError, AttributeError) as exc:
        raise ConfigError(f"cannot import {what}: {exc}", code="SETTINGS") from exc


def has_frames() -> bool:
    """Whether polars is installed (extra `frames`)."""
    return importlib.util.find_spec("polars") is not None


def describe_options(task: Task) -> list[str]:
    """`name: type = default` of each option."""
    if task.options is None:
        return []
    return [
        f"{name}: {_type_text(field.annotation)}"
        + ("" if field.is_required() else f" = {field.get_default(call_default_factory=True, validated_data={})}")
        for name, field in task.options.model_fields.items()
    ]


def _type_text(annotation: Any) -> str:
    """The type as Python writes it, without the rules that a validator adds."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_text(parts[0])
    if origin is Literal:
        return " | ".join(map(repr, parts))
    if origin is Union or origin is UnionType:
        return " | ".join(_type_text(part) for part in parts)
    if origin is not None:
        inner = ", ".join("…" if part is Ellipsis else _type_text(part) for part in parts)
        return f"{origin.__name__}[{inner}]"
    if annotation is NoneType:
        return "None"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
