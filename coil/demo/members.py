"""The documented members of a standard library module, from its source or from the compiled module.

Sources are parsed but never run, so reading them has no side effects. Only modules without Python source are
imported.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import re
import warnings
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from types import ModuleType

_BOUND_ARGUMENT = re.compile(r"^\(\$\w+(, /)?(, )?")  # `($self, ` of a compiled function's signature


@dataclass(frozen=True)
class Member:
    """A documented member. `path` is its dotted name in the module, empty for the module itself."""

    path: str
    kind: str
    signature: str
    docstring: str
    origin: Hashable  # identifies the definition, to tell a re-export from another definition


def is_public(name: str) -> bool:
    """Whether no part of a dotted name begins with an underscore."""
    return not any(part.startswith("_") for part in name.split("."))


# --- from source -----------------------------------------------------------------------------------------


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module or class, including those inside `if`, `try` and `with`."""
    for node in body:
        if isinstance(node, ast.If):
            yield from statements([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            handlers = [statement for handler in node.handlers for statement in handler.body]
            yield from statements([*node.body, *handlers, *node.orelse, *node.finalbody])
        elif isinstance(node, ast.With):
            yield from statements(node.body)
        else:
            yield node


def exported_names(tree: ast.Module) -> frozenset[str] | None:
    """The names in `__all__`; None if there is none, or if it is computed."""
    names: set[str] = set()
    found = False
    for node in statements(tree.body):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AugAssign):
            targets = [node.target]
        if not any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            continue
        assert isinstance(node, (ast.Assign, ast.AugAssign))
        try:
            names.update(ast.literal_eval(node.value))
        except ValueError:
            return None
        found = True
    return frozenset(names) if found else None


def source_members(module: str, tree: ast.Module) -> Iterator[Member]:
    """The module itself, and its public classes, functions and methods that have a docstring."""
    docstring = ast.get_docstring(tree)
    if docstring:
        yield Member("", "module", f"module {module}", docstring, (module, ""))
    yield from _definitions(module, tree.body, "")


def _definitions(module: str, body: list[ast.stmt], inside: str) -> Iterator[Member]:
    for node in statements(body):
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if not is_public(node.name):
            continue
        path = f"{inside}.{node.name}" if inside else node.name
        docstring = ast.get_docstring(node)
        if docstring:
            yield Member(path, _kind(node, inside), _signature(node, path), docstring, (module, path))
        if isinstance(node, ast.ClassDef):
            yield from _definitions(module, node.body, path)


def _kind(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, inside: str) -> str:
    if isinstance(node, ast.ClassDef):
        return "class"
    names = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    if names & {"property", "cached_property"}:
        return "property"
    return "method" if inside else "function"


def _signature(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, path: str) -> str:
    if not isinstance(node, ast.ClassDef):
        return _call(node, path, drop_self="." in path)
    for member in statements(node.body):
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            return "class " + _call(member, path, drop_self=True)
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    return f"class {path}({bases})" if bases else f"class {path}"


def _call(node: ast.FunctionDef | ast.AsyncFunctionDef, path: str, drop_self: bool) -> str:
    if _kind(node, "") == "property":
        return path
    arguments = ast.unparse(node.args)
    first = next((argument.arg for argument in [*node.args.posonlyargs, *node.args.args]), "")
    if drop_self and first in {"self", "cls"}:
        arguments = arguments.removeprefix(first).lstrip(", ").removeprefix("/").lstrip(", ")
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{prefix}{path}({arguments}){returns}"


# --- from compiled modules -------------------------------------------------------------------------------


def import_quietly(name: str) -> ModuleType | None:
    """Import a compiled module without any output; None if this machine cannot load it."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # some modules warn that they are deprecated
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                return importlib.import_module(name)
            except (ImportError, OSError):  # a system library that the module needs is missing
                return None


def compiled_members(name: str) -> Iterator[Member]:
    """Like `source_members`, for a module without Python source."""
    module = import_quietly(name)
    if module is None:
        return
    if module.__doc__:
        yield Member("", "module", f"module {name}", inspect.cleandoc(module.__doc__), (name, ""))
    for path, value in sorted(vars(module).items()):
        if not is_public(path):
            continue
        if inspect.isclass(value):
            yield from _class_members(path, value)
            continue
        # A program may have replaced `sys.excepthook` and the like; the original is in `sys.__excepthook__`.
        original = vars(module).get(f"__{path}__", value)
        if inspect.isbuiltin(original):
            yield from _documented(path, "function", original, id(original))


def _class_members(path: str, value: type) -> Iterator[Member]:
    yield from _documented(path, "class", value, id(value))
    for name, member in sorted(vars(value).items()):
        if not is_public(name):
            continue
        origin = (id(value), name)
        if inspect.isroutine(member) or isinstance(member, (classmethod, staticmethod)):
            # Looked up on the class, so that a class method or static method has its own docstring.
            yield from _documented(f"{path}.{name}", "method", getattr(value, name), origin)
        elif inspect.isdatadescriptor(member):
            yield from _documented(f"{path}.{name}", "property", member, origin)


def _documented(path: str, kind: str, value: object, origin: Hashable) -> Iterator[Member]:
    docstring = getattr(value, "__doc__", None)
    if not isinstance(docstring, str) or not docstring.strip():
        return
    docstring = inspect.cleandoc(docstring)
    # Not `inspect.signature`: it evaluates the defaults, some of which may not exist here.
    arguments = getattr(value, "__text_signature__", None)
    signature = path
    if isinstance(arguments, str):
        signature = path + _BOUND_ARGUMENT.sub("(", arguments)
    elif kind != "property":  # older functions write their signature into the docstring
        first, _, rest = docstring.partition("\n")
        name = path.rpartition(".")[2]
        if first.startswith(f"{name}(") and rest.strip():
            signature, docstring = f"{path}{first.removeprefix(name)}", rest.strip()
    if kind == "class":
        signature = f"class {signature}"
    yield Member(path, kind, signature, docstring, origin)
