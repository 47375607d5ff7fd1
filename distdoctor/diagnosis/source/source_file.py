"""One source file, parsed and indexed once: its scopes, what each of them calls, binds and returns, and who encloses whom.

For lint and for the checks alike. Lines count from 1.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import PurePath
from typing import TypeVar, overload
from weakref import WeakValueDictionary

from distdoctor.recording.source_line import SourceLine

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
N = TypeVar("N", bound=ast.AST)
N2 = TypeVar("N2", bound=ast.AST)
N3 = TypeVar("N3", bound=ast.AST)
Loop = ast.For | ast.AsyncFor | ast.While
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class Unparsable(Exception):
    """The text is no Python that this interpreter reads; the message is one sentence."""


@dataclass(frozen=True, eq=False)
class Binding:
    """`name = value`. `item`: the place in a tuple that is unpacked, -1 for all of it. `looped`: one of the items of `value`."""

    name: str
    value: ast.expr
    statement: ast.AST
    item: int = -1
    looped: bool = False


@dataclass(eq=False)
class Scope:
    """A function, or the module itself, with what stands directly in it (nested functions are scopes of their own)."""

    file: SourceFile
    node: FunctionNode | ast.Module
    outer: Scope | None = None
    class_name: str = ""  # whose `self` it sees
    of_class: str = ""  # whose method it is; "" for a function inside a method
    calls: list[ast.Call] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    returns: list[ast.Return] = field(default_factory=list)
    withs: list[ast.With | ast.AsyncWith] = field(default_factory=list)
    assigns: list[ast.Assign | ast.AugAssign | ast.AnnAssign] = field(default_factory=list)
    bindings: dict[str, list[Binding]] = field(default_factory=lambda: defaultdict(list))
    functions: dict[str, Scope] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What a traceback calls it; "" for the module."""
        return "" if isinstance(self.node, ast.Module) else self.node.name

    @property
    def traceback_name(self) -> str:
        return self.name or "<module>"

    @property
    def path(self) -> str:
        return self.file.path

    def line(self, node: ast.AST) -> SourceLine:
        """Where something in it stands."""
        return SourceLine(self.path, lineno(node), self.traceback_name)

    def default_of(self, parameter: str) -> ast.expr | None:
        """What a parameter is where no caller says; None where one has to."""
        if isinstance(self.node, ast.Module):
            return None
        given = self.node.args
        named = [*given.posonlyargs, *given.args]
        by_place = dict(zip([one.arg for one in named][::-1], given.defaults[::-1], strict=False))
        by_name = {one.arg: value for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value}
        return {**by_place, **by_name}.get(parameter)

    @property
    def parameters(self) -> list[str]:
        if isinstance(self.node, ast.Module):
            return []
        arguments = self.node.args
        return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]

    @property
    def decorators(self) -> list[ast.expr]:
        return [] if isinstance(self.node, ast.Module) else self.node.decorator_list


@dataclass(eq=False)
class SourceFile:
    """A parsed file. `imports`: local name -> dotted name. `classes`: class -> names of its bases and its methods."""

    path: str
    text: str
    tree: ast.Module
    module: Scope = field(init=False)
    scopes: list[Scope] = field(default_factory=list)
    parent: dict[ast.AST, ast.AST] = field(default_factory=dict)
    scope_of: dict[ast.AST, Scope] = field(default_factory=dict)
    scope_by_node: dict[ast.AST, Scope] = field(default_factory=dict)  # of the function or module itself
    imports: dict[str, str] = field(default_factory=dict)
    starred: list[str] = field(default_factory=list)  # the modules of `from module import *`
    import_nodes: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    attributes: list[ast.Attribute] = field(default_factory=list)
    names: list[ast.Name] = field(default_factory=list)
    classes: dict[str, dict[str, Scope]] = field(default_factory=lambda: defaultdict(dict))
    bases: dict[str, list[ast.expr]] = field(default_factory=dict)
    fields: dict[str, dict[str, list[tuple[Binding, Scope]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    @property
    def words(self) -> tuple[str, ...]:
        """The module's dotted name as far as its path tells: ("pkg", "utils") for pkg/utils.py and pkg/utils/__init__.py."""
        parts = PurePath(self.path).with_suffix("").parts
        return parts[:-1] if parts and parts[-1] == "__init__" else parts

    def enclosing(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """(ancestor, its child on the way to `node`), from the inside out, up to the function or module."""
        inner = node
        while (outer := self.parent.get(inner)) is not None:
            yield outer, inner
            if isinstance(outer, FunctionNode):
                return
            inner = outer

    def loops_around(self, node: ast.AST) -> list[Loop]:
        """The loops whose body holds `node`, the innermost first."""
        return [o for o, i in self.enclosing(node) if isinstance(o, _LOOPS) and any(i is one for one in o.body)]

    def path_to(self, line: int) -> list[ast.AST]:
        """The nodes that contain a line, from the module inwards.

        Of several on one line the one that calls something is followed, a statement first: the line was reached by a call, and in
        `if rank == 0: save()` that is not the condition.
        """
        path: list[ast.AST] = [self.tree]
        while True:
            inside = [
                child
                for child in ast.iter_child_nodes(path[-1])
                if getattr(child, "lineno", line + 1) <= line <= (getattr(child, "end_lineno", 0) or 0)
            ]
            if not inside:
                return path
            path.append(inside[0] if len(inside) == 1 else min(inside, key=_unlikely_to_call))

    def function_at(self, line: int) -> FunctionNode | ast.Module:
        """The innermost function around a line, the module when there is none."""
        return next((node for node in reversed(self.path_to(line)) if isinstance(node, FunctionNode)), self.tree)

    @overload
    def nodes(self, kind: type[N], /) -> Iterator[N]: ...
    @overload
    def nodes(self, kind: type[N], second: type[N2], /) -> Iterator[N | N2]: ...
    @overload
    def nodes(self, kind: type[N], second: type[N2], third: type[N3], /) -> Iterator[N | N2 | N3]: ...
    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        """The nodes of these kinds, those nearer to the module first."""
        return (node for node in chain((self.tree,), self.parent) if isinstance(node, kinds))

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that a node stands in."""
        while not isinstance(node, ast.stmt):
            node = self.parent[node]
        return node


def source_file(sources: Mapping[str, str], path: str) -> SourceFile | None:
    """One of the sources, path -> text; None when it is not there, or no Python."""
    try:
        return parse(path, sources[path])
    except (KeyError, Unparsable):
        return None


# Nodes of one file are looked up in one another's indices, so there is one tree of it for as long as anybody holds that.
_living: WeakValueDictionary[tuple[str, str], SourceFile] = WeakValueDictionary()


@lru_cache(maxsize=256)
def parse(path: str, text: str) -> SourceFile:
    """The file with its index, read once. Unparsable: it is no Python of this version."""
    file = _living.get((path, text))
    if file is None:
        file = _living[path, text] = _parsed(path, text)
    return file


def _parsed(path: str, text: str) -> SourceFile:
    try:
        file = SourceFile(path, text, ast.parse(text))
    except SyntaxError as trouble:
        raise Unparsable(f"{path}:{trouble.lineno or 0} is no Python: {trouble.msg}") from None
    except (ValueError, RecursionError, MemoryError) as trouble:
        raise Unparsable(f"{path} cannot be parsed: {trouble or type(trouble).__name__}") from None
    file.module = Scope(file, file.tree)
    file.scopes.append(file.module)
    file.scope_by_node[file.tree] = file.module
    for node in ast.walk(file.tree):
        file.parent.update(dict.fromkeys(ast.iter_child_nodes(node), node))
    _index(file)
    return file


def _index(file: SourceFile) -> None:
    """One pass over the tree, in the order of the source; no recursion, so that no nesting is too deep."""
    stack: list[tuple[ast.AST, Scope, str]] = [(file.tree, file.module, "")]
    while stack:
        node, scope, class_name = stack.pop()
        file.scope_of[node] = scope
        inner, inside_class = scope, class_name
        if isinstance(node, FunctionNode):
            inner = _open(file, node, scope, class_name)
            inside_class = ""
        elif isinstance(node, ast.ClassDef):
            inside_class = node.name
            file.bases[node.name] = node.bases
        else:
            _note(file, node, scope)
        outside = node.decorator_list if isinstance(node, FunctionNode) else ()
        for child in reversed(list(ast.iter_child_nodes(node))):
            stack.append((child, scope if any(child is one for one in outside) else inner, inside_class))


def _open(file: SourceFile, node: FunctionNode, outer: Scope, class_name: str) -> Scope:
    scope = Scope(file, node, outer, class_name or outer.class_name, class_name)
    file.scope_by_node[node] = scope
    file.scopes.append(scope)
    (file.classes[class_name] if class_name else outer.functions)[node.name] = scope
    return scope


def _note(file: SourceFile, node: ast.AST, scope: Scope) -> None:
    match node:
        case ast.Call():
            scope.calls.append(node)
        case ast.Attribute():
            file.attributes.append(node)
        case ast.Name():
            file.names.append(node)
        case ast.Assign():
            scope.assigns.append(node)
            for target in node.targets:
                _bind(scope, target, node.value, node)
        case ast.AnnAssign() | ast.AugAssign():
            scope.assigns.append(node)
            if node.value is not None:
                _bind(scope, node.target, node.value, node)
        case ast.NamedExpr():
            _bind(scope, node.target, node.value, node)
        case ast.For() | ast.AsyncFor() | ast.While():
            scope.loops.append(node)
            if not isinstance(node, ast.While):
                _bind(scope, node.target, node.iter, node, looped=True)
        case ast.comprehension():
            _bind(scope, node.target, node.iter, node, looped=True)
        case ast.With() | ast.AsyncWith():
            scope.withs.append(node)
            for one in node.items:
                if one.optional_vars is not None:
                    _bind(scope, one.optional_vars, one.context_expr, node)
        case ast.Return():
            scope.returns.append(node)
        case ast.Import() | ast.ImportFrom():
            _import(file, node)


def _bind(scope: Scope, target: ast.expr, value: ast.expr, node: ast.AST, item: int = -1, looped: bool = False) -> None:
    if isinstance(target, ast.Tuple | ast.List):
        same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts) and not looped
        for number, one in enumerate(target.elts):
            part = value.elts[number] if same and isinstance(value, ast.Tuple | ast.List) else value
            _bind(scope, one, part, node, -1 if same else number, looped)
        return
    name = dotted(target) or item_name(target)
    if name:
        binding = Binding(name, value, node, item, looped)
        scope.bindings[name].append(binding)
        if name.startswith("self.") and scope.class_name:
            scope.file.fields[scope.class_name][name].append((binding, scope))


def _import(file: SourceFile, node: ast.Import | ast.ImportFrom) -> None:
    file.import_nodes.append(node)
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname:
                file.imports[alias.asname] = alias.name
            else:
                first = alias.name.partition(".")[0]
                file.imports[first] = first
        return
    start = "." * node.level + (node.module or "")
    for alias in node.names:
        if alias.name == "*":
            file.starred.append(start)
        joined = f"{start}{alias.name}" if start.endswith(".") else f"{start}.{alias.name}"
        file.imports[alias.asname or alias.name] = joined


def dotted(node: ast.AST | None) -> str:
    """`self.model` of an attribute chain of names; "" for everything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    parts.append(node.id)
    return ".".join(reversed(parts))


def item_name(node: ast.AST) -> str:
    """`loaders['train']` of an item with a literal key; "" for everything else."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
        return ""
    name = dotted(node.value)
    return f"{name}[{node.slice.value!r}]" if name else ""


def last_word(node: ast.AST | None) -> str:
    """`all_reduce` of `dist.all_reduce` and of `anything().all_reduce`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def within(outer: ast.AST, node: ast.AST, file: SourceFile) -> bool:
    """Whether `node` stands inside `outer`."""
    current: ast.AST | None = node
    while current is not None:
        if current is outer:
            return True
        current = file.parent.get(current)
    return False


def exclusive(one: ast.AST, other: ast.AST, file: SourceFile) -> bool:
    """Whether two nodes stand in different branches of one condition, so that never both run in one pass."""
    mine = {id(outer): (outer, inner) for outer, inner in file.enclosing(one)}
    for outer, inner in file.enclosing(other):
        if id(outer) in mine and isinstance(outer, ast.If):
            here = mine[id(outer)][1]
            return _in(outer.orelse, here) != _in(outer.orelse, inner) and outer.test not in (here, inner)
    return False


def _unlikely_to_call(node: ast.AST) -> tuple[bool, bool]:
    calls = any(isinstance(one, ast.Call) for one in ast.walk(node))
    return not calls, not isinstance(node, ast.stmt)


def _in(block: list[ast.stmt], node: ast.AST) -> bool:
    return any(node is one for one in block)


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument, None when it is not given."""
    return next((one.value for one in call.keywords if one.arg == name), None)


def argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    """An argument that may be given by place or by name."""
    if len(call.args) > place and not any(isinstance(one, ast.Starred) for one in call.args[: place + 1]):
        return call.args[place]
    return keyword(call, name)


def is_constant(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def opaque(call: ast.Call) -> bool:
    """Whether `*args` or `**kwargs` may carry arguments that are not written here."""
    return any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)


def lineno(node: ast.AST) -> int:
    """The line that a node begins in."""
    if isinstance(node, ast.comprehension):
        node = node.target
    elif isinstance(node, ast.withitem):
        node = node.context_expr
    return int(getattr(node, "lineno", 1))


def made_by(value: ast.expr | None) -> ast.Call | None:
    """The call that makes a value, without the `.cuda()` or `.to(device)` that follows it."""
    while (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in ("to", "cuda", "cpu")
    ):
        value = value.func.value
    return value if isinstance(value, ast.Call) else None
