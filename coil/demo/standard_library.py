"""The documentation of the running Python's standard library, as documents."""

from __future__ import annotations

import ast
import os.path
import sys
import sysconfig
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from coil.demo.members import Member, compiled_members, exported_names, is_public, source_members, statements
from coil.texts.values import Document

DOCSTRING_CHARACTERS = 600  # the beginning states the purpose
SIGNATURE_CHARACTERS = 200
PACKAGE_FILE = "__init__.py"

# Never read. Some have side effects when imported, some are programs, test suites or data; readline takes
# over the terminal, _tkinter needs graphics libraries, and newer Pythons lack lib2to3 and distutils.
SKIPPED = frozenset(
    """antigravity this idlelib turtledemo lib2to3 distutils test tests ensurepip pip pydoc_data encodings
    readline sitecustomize usercustomize xxlimited xxlimited_35 xxsubtype _tkinter""".split()
) | ({"posixpath", "ntpath"} - {os.path.__name__})

# Modules that are better known under another name.
KNOWN_AS = {os.path.__name__: "os.path", "genericpath": "os.path", "posix": "os", "nt": "os"}


def read_standard_library() -> list[Document]:
    """Every public module, class, function and method of the standard library that has a docstring.

    The id is the name as used in code (`asyncio.wait_for`, `str.split`), the text consists of the signature
    and the beginning of the docstring, and `fields` has the kind and the module. Builtins come first, then
    modules by name, a package before its parts. What a package re-exports is listed there and not again where
    it is defined. If two members have the same id, the first is used.
    """
    library = _Library()
    documents: dict[str, Document] = {}
    seen: set[Hashable] = set()
    for module in ["builtins", *library.public_modules()]:
        shown = KNOWN_AS.get(module, module)
        for member in library.members(module):
            doc_id = member.path if module == "builtins" else f"{shown}.{member.path}".rstrip(".")
            if not doc_id or doc_id in documents or member.origin in seen:
                continue
            seen.add(member.origin)
            documents[doc_id] = _document(doc_id, shown, member)
    return list(documents.values())


def _document(doc_id: str, module: str, member: Member) -> Document:
    prefix = "class " if member.kind == "class" else ""
    signature = member.signature.replace(f"{prefix}{member.path}", f"{prefix}{doc_id}", 1)
    if not member.path:
        signature = f"module {doc_id}"
    signature = shorten(" ".join(signature.split()), SIGNATURE_CHARACTERS)
    text = f"{signature}\n\n{shorten(member.docstring.strip(), DOCSTRING_CHARACTERS)}"
    return Document(doc_id, text, {"kind": member.kind, "module": module})


def shorten(text: str, characters: int) -> str:
    """Truncate a long text after its last complete word, with an ellipsis."""
    if len(text) <= characters:
        return text
    cut = text[:characters]
    whole, _, rest = cut.rpartition(" ")
    return (whole if whole and len(rest) < 60 else cut).rstrip() + " …"


def _library_folders() -> list[Path]:
    paths = sysconfig.get_paths()
    compiled = sysconfig.get_config_var("DESTSHARED") or str(Path(paths["platstdlib"], "lib-dynload"))
    folders = [paths["stdlib"], paths["platstdlib"], compiled, str(Path(sys.base_prefix, "DLLs"))]
    return [Path(folder) for folder in dict.fromkeys(folders)]


@dataclass(frozen=True)
class _Source:
    """What is kept of a module's source; keeping all syntax trees would slow everything down."""

    members: list[Member]
    exported: frozenset[str] | None
    imports: list[ast.ImportFrom]


@dataclass
class _Library:
    """Finds modules without importing them, and caches what it has read."""

    folders: list[Path] = field(default_factory=_library_folders)
    _sources: dict[str, _Source | None] = field(default_factory=dict)
    _members: dict[str, list[Member]] = field(default_factory=dict)

    def public_modules(self) -> Iterator[str]:
        """The public modules by name, a package before its parts."""
        for name in sorted(sys.stdlib_module_names):
            if name not in SKIPPED and is_public(name) and name != "builtins":
                yield name
                yield from self._parts(name)

    def members(self, module: str) -> list[Member]:
        """The documented members of a module: its own definitions, then those that it re-exports."""
        if module not in self._members:
            self._members[module] = []  # ends the recursion of modules that import each other
            self._members[module] = list(self._read(module))
        return self._members[module]

    def _parts(self, package: str) -> Iterator[str]:
        path = self._find(package)
        if path is None or path.name != PACKAGE_FILE:
            return
        for part in sorted(path.parent.iterdir()):
            is_module = part.suffix == ".py" or (part / PACKAGE_FILE).is_file()
            if is_module and part.stem not in SKIPPED and is_public(part.stem):
                yield f"{package}.{part.stem}"
                yield from self._parts(f"{package}.{part.stem}")

    def _read(self, module: str) -> Iterator[Member]:
        source = self._source(module)
        if source is not None:
            yield from source.members
            for node in source.imports:
                yield from self._reexported(module, source, node)
        elif self._is_compiled(module):
            yield from compiled_members(module)

    def _reexported(self, module: str, source: _Source, node: ast.ImportFrom) -> Iterator[Member]:
        """The members that an import re-exports: names from a private module, or from the package."""
        target = self._target(module, node)
        package = module.partition(".")[0]
        private = target.rpartition(".")[2].startswith("_")
        if not private and not (self._is_package(module) and target.startswith(f"{package}.")):
            return
        if any(alias.name == "*" for alias in node.names):
            inner = self._source(target)
            offered = inner.exported if inner is not None else None
            names = {member.path.partition(".")[0] for member in self.members(target)}
            wanted = {name: name for name in names if offered is None or name in offered}
        else:
            pairs = [(alias.name, alias.asname or alias.name) for alias in node.names]
            wanted = {
                name: shown for name, shown in pairs if source.exported is None or shown in source.exported
            }
        for member in self.members(target):
            name, dot, rest = member.path.partition(".")
            if name and name in wanted and is_public(wanted[name]):
                yield replace(member, path=f"{wanted[name]}{dot}{rest}")

    def _target(self, module: str, node: ast.ImportFrom) -> str:
        """The absolute name of the module that an import refers to."""
        if not node.level:
            return node.module or ""
        up = node.level - 1 if self._is_package(module) else node.level
        above = module.split(".")
        return ".".join([*above[: len(above) - up], *([node.module] if node.module else [])])

    def _source(self, module: str) -> _Source | None:
        if module not in self._sources:
            path = self._find(module)
            self._sources[module] = (
                _read_source(module, path) if path is not None and path.suffix == ".py" else None
            )
        return self._sources[module]

    def _is_package(self, module: str) -> bool:
        path = self._find(module)
        return path is not None and path.name == PACKAGE_FILE

    def _is_compiled(self, module: str) -> bool:
        if module in SKIPPED:
            return False
        path = self._find(module)
        return module in sys.builtin_module_names or (path is not None and path.suffix != ".py")

    def _find(self, module: str) -> Path | None:
        """The file of a module. Not `importlib.util.find_spec`: that imports the packages around it."""
        *above, name = module.split(".")
        for folder in self.folders:
            inside = folder.joinpath(*above)
            for file in (f"{name}/{PACKAGE_FILE}", f"{name}.py", *(f"{name}{s}" for s in EXTENSION_SUFFIXES)):
                if (inside / file).is_file():
                    return inside / file
        return None


def _read_source(module: str, path: Path) -> _Source | None:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    imports = [node for node in statements(tree.body) if isinstance(node, ast.ImportFrom)]
    return _Source(list(source_members(module, tree)), exported_names(tree), imports)
