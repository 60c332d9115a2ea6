"""Classes stay small: a limited number of methods, and at most one callback in a constructor."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
MAX_METHODS = 22
MAX_CALLBACKS = 1

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def methods(node: ast.ClassDef) -> set[str]:
    """Names, so that the overloads of a method count once."""
    return {one.name for one in node.body if isinstance(one, FUNCTIONS)}


def names_in(node: ast.AST | None) -> set[str]:
    """Names of an annotation, also inside quotes."""
    if node is None:
        return set()
    found: set[str] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            found.add(one.id)
        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
            found |= names_in(ast.parse(one.value, mode="eval"))
    return found


def callback_types(trees: list[ast.Module]) -> set[str]:
    """`Callable`, and the names that modules give to a type of callables."""
    aliases = (node for tree in trees for node in tree.body if isinstance(node, ast.Assign))
    return {"Callable"} | {
        target.id
        for node in aliases
        if isinstance(node.value, ast.Subscript) and names_in(node.value.value) == {"Callable"}
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in names_in(decorator) for decorator in node.decorator_list)


def callbacks(node: ast.ClassDef, types: set[str]) -> list[str]:
    """Parameters of the constructor that are annotated as callables; fields are parameters of a dataclass."""
    found: list[str] = []
    for one in node.body:
        if isinstance(one, FUNCTIONS) and one.name == "__init__":
            parameters = (*one.args.posonlyargs, *one.args.args, *one.args.kwonlyargs)
            found += [parameter.arg for parameter in parameters if names_in(parameter.annotation) & types]
        elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and is_dataclass(node):
            found += [one.target.id] if names_in(one.annotation) & types else []
    return found


def parsed() -> dict[str, ast.Module]:
    return {str(file.relative_to(SOURCE)): ast.parse(file.read_text("utf-8")) for file in sorted(SOURCE.rglob("*.py"))}


def test_no_class_has_too_many_methods() -> None:
    # a conformance suite is a list of tests, which does not become clearer in pieces
    trees = {file: tree for file, tree in parsed().items() if not file.startswith("vitrine/testing/")}
    found = {f"{file}:{node.name}": len(methods(node)) for file, tree in trees.items() for node in classes(tree)}
    assert {name: count for name, count in found.items() if count > MAX_METHODS} == {}


def test_no_constructor_takes_several_callbacks() -> None:
    trees = parsed()
    types = callback_types(list(trees.values()))
    found = {f"{file}:{node.name}": callbacks(node, types) for file, tree in trees.items() for node in classes(tree)}
    assert {name: names for name, names in found.items() if len(names) > MAX_CALLBACKS} == {}


def test_methods_and_callbacks_are_counted_in_every_form() -> None:
    tree = ast.parse(
        "Watch = Callable[[int], None]\n"
        "class A:\n"
        "    def __init__(self, a: Callable[[], None] | None, b: 'Watch | None', *, c: int) -> None: ...\n"
        "    @overload\n"
        "    def read(self, a: int) -> int: ...\n"
        "    def read(self, a: int | str) -> int: ...\n"
        "@dataclass(frozen=True)\n"
        "class B:\n"
        "    a: Callable[..., None]\n"
    )
    types = callback_types([tree])
    assert [(len(methods(node)), callbacks(node, types)) for node in classes(tree)] == [(2, ["a", "b"]), (0, ["a"])]
