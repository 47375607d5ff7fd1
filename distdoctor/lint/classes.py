"""Which class of the program a name stands for or a value is of, and which methods stand in the place of an abstract one."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from distdoctor.diagnosis.source.source_file import Binding, Scope, SourceFile, dotted

MOST_STEPS = 5  # through assignments, fields and returns to the call that makes an instance
MOST_BASES = 4  # from a class to the one that has the method
MOST_BINDINGS = 4  # of one name


class Program(Protocol):
    """What is asked of the program here."""

    files: list[SourceFile]

    def home(self, name: str, asking: SourceFile) -> tuple[SourceFile, str] | None: ...
    def function(self, node: ast.expr, scope: Scope, steps: int) -> Scope | None: ...
    def bindings(self, name: str, scope: Scope) -> list[tuple[Binding, Scope]]: ...


@dataclass(frozen=True)
class OwnClass:
    """A class of the program."""

    name: str
    file: SourceFile


@dataclass(eq=False)
class Classes:
    """The classes of all files together. Lookups are done once and kept."""

    program: Program
    _kept: dict[tuple[int, str, int], tuple[OwnClass, ...]] = field(default_factory=dict)  # (scope, name, steps left)

    def named(self, node: ast.expr | None, file: SourceFile) -> OwnClass | None:
        """The class that an expression names: `Trainer`, `engines.Trainer`, `"Trainer"`, `Optional[Trainer]`."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self.named(_parsed(node.value), file)
        if isinstance(node, ast.Subscript) and dotted(node.value).rpartition(".")[2] == "Optional":
            return self.named(node.slice, file)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return self.named(node.left, file) or self.named(node.right, file)
        name = dotted(node)
        if name in file.bases:
            return OwnClass(name, file)
        home = self.program.home(name, file) if name else None
        return OwnClass(home[1], home[0]) if home is not None and home[1] in home[0].bases else None

    def method(self, of: OwnClass, word: str) -> Scope | None:
        """The method of that name, its own or a base's."""
        return next((one for cls in self._lineage(of) if (one := cls.file.classes.get(cls.name, {}).get(word))), None)

    def of_name(self, name: str, scope: Scope, steps: int = MOST_STEPS) -> tuple[OwnClass, ...]:
        """The classes that what a name holds may be of: `trainer`, `self.engine`, `runner.engine`."""
        key = (id(scope), name, steps)  # a name that is bound to itself ends with the steps
        if key not in self._kept:
            self._kept[key] = tuple(dict.fromkeys(self._found(name, scope, steps - 1))) if steps > 0 else ()
        return self._kept[key]

    def in_place_of(self, method: Scope) -> list[Scope]:
        """The function itself; of an abstract method those that derived classes have in its place, where there are any."""
        if not method.of_class or not _is_abstract(method):
            return [method]
        found: list[Scope] = []
        front = [OwnClass(method.of_class, method.file)]
        for _ in range(MOST_BASES):
            front = [one for base in front for one in self._derived.get(base, ())]
            own = (one.file.classes.get(one.name, {}).get(method.name) for one in front)
            found += [one for one in own if one is not None and one not in found]
        return found or [method]

    @cached_property
    def _derived(self) -> dict[OwnClass, list[OwnClass]]:
        found = defaultdict(list)
        for file in self.program.files:
            for name, bases in file.bases.items():
                for base in bases:
                    if (cls := self.named(base, file)) is not None:
                        found[cls].append(OwnClass(name, file))
        return found

    def _lineage(self, of: OwnClass, depth: int = 0) -> Iterator[OwnClass]:
        """A class and its bases, each before its own bases."""
        yield of
        for base in of.file.bases.get(of.name, ()) if depth < MOST_BASES else ():
            cls = self.named(base, of.file)
            if cls is not None and cls != of:
                yield from self._lineage(cls, depth + 1)

    def _found(self, name: str, scope: Scope, steps: int) -> Iterator[OwnClass]:
        owner, _, word = name.rpartition(".")
        if name in ("self", "cls"):
            if scope.class_name:
                yield OwnClass(scope.class_name, scope.file)
        elif owner:
            for of in self.of_name(owner, scope, steps):
                yield from self._of_field(of, word, steps)
        else:
            for binding, where in self.program.bindings(name, scope)[:MOST_BINDINGS]:
                yield from self._of_binding(binding, where, steps)
            yield from self._of_parameter(name, scope)

    def _of_field(self, of: OwnClass, word: str, steps: int) -> Iterator[OwnClass]:
        for cls in self._lineage(of):
            fields = cls.file.fields.get(cls.name, {}).get(f"self.{word}", [])
            for binding, where in fields[:MOST_BINDINGS]:
                yield from self._of_binding(binding, where, steps)
            if fields:
                return

    def _of_parameter(self, name: str, scope: Scope) -> Iterator[OwnClass]:
        here: Scope | None = scope
        while here is not None and name not in here.parameters:
            here = here.outer
        if here is not None and not isinstance(here.node, ast.Module):
            given = here.node.args
            for one in (*given.posonlyargs, *given.args, *given.kwonlyargs):
                if one.arg == name and (cls := self.named(one.annotation, here.file)) is not None:
                    yield cls

    def _of_binding(self, binding: Binding, scope: Scope, steps: int) -> Iterator[OwnClass]:
        if isinstance(binding.statement, ast.AnnAssign):
            cls = self.named(binding.statement.annotation, scope.file)
            if cls is not None:
                yield cls
                return
        if binding.item < 0 and not binding.looped:
            yield from self._of_value(binding.value, scope, steps)

    def _of_value(self, value: ast.expr | None, scope: Scope, steps: int) -> Iterator[OwnClass]:
        if isinstance(value, ast.Call):
            cls = self.named(value.func, scope.file)
            if cls is not None:
                yield cls
                return
            target = self.program.function(value.func, scope, steps) if steps > 0 else None
            for one in target.returns if target is not None else ():
                yield from self._of_value(one.value, target or scope, steps - 1)
        elif name := dotted(value):
            yield from self.of_name(name, scope, steps)


def _is_abstract(method: Scope) -> bool:
    """Whether a method does nothing but say so."""
    assert not isinstance(method.node, ast.Module)
    return all(
        isinstance(one, ast.Pass | ast.Raise) or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
        for one in method.node.body
    )


def _parsed(annotation: str) -> ast.expr | None:
    try:
        return ast.parse(annotation, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
