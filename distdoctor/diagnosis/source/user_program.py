"""The user's files as one program: who calls whom, and what an object is an instance of, by the names that the source uses.

Pure `ast`. Names are all there is: a method that several classes have is taken for any of them, unless the source says which.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from distdoctor.diagnosis.source.source_file import FunctionNode, Scope, SourceFile, last_word, source_file

STEPS = 4  # through assignments, parameters and wrappers, from a name to the class of its object
MOST_MEANT = 4  # methods of one name that a call may reach when nothing says which
_SHOWN = ("__str__", "__repr__", "__format__")
_SHOWING = frozenset({"str", "repr", "print", "format", "debug", "info", "warning", "error", "log", "write"})
_CALLED = ("__call__", "forward")
_HANDLED = frozenset({"signal", "add_signal_handler"})
_ITERATED = ("__iter__", "__next__", "__getitem__")


@dataclass(eq=False)
class UserProgram:
    """Some files. `parents` and `scopes` (by the node of the body) go over all of them."""

    files: tuple[SourceFile, ...]
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    scopes: dict[ast.AST, Scope] = field(default_factory=dict)
    _bound: dict[tuple[ast.AST, int], frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for file in self.files:
            self.parents |= file.parent
            bodies = (node for node in file.nodes(ast.AST) if node in file.scope_by_node)
            self.scopes |= {node: file.scope_by_node[node] for node in bodies}

    @classmethod
    def of(cls, sources: Mapping[str, str]) -> UserProgram:
        """Path -> text. What is no Python is left out."""
        return cls(tuple(file for path in sorted(sources) if (file := source_file(sources, path)) is not None))

    def scope_of(self, node: ast.AST) -> Scope:
        """The body that a node stands in; of a function's own node, the one that defines it."""
        while node in self.parents:
            node = self.parents[node]
            if node in self.scopes:
                return self.scopes[node]
        return self.scopes[node]

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """(parent, child) from a node up to the body that it stands in."""
        while node in self.parents:
            yield self.parents[node], node
            node = self.parents[node]
            if node in self.scopes:
                return

    def inside(self, scope: Scope) -> Iterator[ast.AST]:
        """The nodes of a body, those of functions defined in it left out."""
        waiting: list[ast.AST] = list(ast.iter_child_nodes(scope.node))
        while waiting:
            node = waiting.pop()
            yield node
            if node not in self.scopes:
                waiting += ast.iter_child_nodes(node)

    # --- names ---------------------------------------------------------------------------------------------------------------

    @cached_property
    def functions(self) -> dict[str, list[Scope]]:
        """Functions and methods by their names."""
        found: dict[str, list[Scope]] = defaultdict(list)
        for scope in self.scopes.values():
            if scope.name:
                found[scope.name].append(scope)
        return found

    @cached_property
    def signal_handlers(self) -> frozenset[Scope]:
        """The functions that a signal runs, at a moment of each process's own: `signal.signal(signal.SIGUSR1, self.warned)`."""
        names = set()
        for file in self.files:
            for call in file.nodes(ast.Call):
                if isinstance(call, ast.Call) and last_word(call.func) in _HANDLED and len(call.args) > 1:
                    names.add(last_word(call.args[1]))
        return frozenset(scope for name in names - {""} for scope in self.functions.get(name, ()))

    @cached_property
    def classes(self) -> dict[str, list[ast.expr]]:
        """The bases of every class."""
        return {name: bases for file in self.files for name, bases in file.bases.items()}

    @cached_property
    def _related(self) -> dict[str, set[str]]:
        """A class with its bases and what derives from it."""
        found = {name: {name} for name in self.classes}
        for name, bases in self.classes.items():
            for word in map(last_word, bases):
                if word in found:
                    found[name].add(word)
                    found[word].add(name)
        return found

    @cached_property
    def _imported(self) -> set[str]:
        """Names of what comes from elsewhere."""
        return {name for file in self.files for name in file.imports} - self.functions.keys() - self.classes.keys()

    def are_related(self, one: str, other: str) -> bool:
        """Whether a class is another one, a base of it, or derived from it."""
        return one == other or one in self._related.get(other, ())

    def methods(self, classes: frozenset[str] | set[str], *names: str) -> list[Scope]:
        """The methods of these names that these classes have."""
        wanted = {related for name in classes for related in self._related.get(name, ())}
        return [scope for name in names for scope in self.functions.get(name, ()) if scope.of_class in wanted]

    @cached_property
    def _stores(self) -> dict[str, list[tuple[ast.AST, ast.expr]]]:
        """By name (of a variable or an attribute): (statement, value) of everything that is assigned to it."""
        found: dict[str, list[tuple[ast.AST, ast.expr]]] = defaultdict(list)
        for node in self.parents:
            for target, value in _assigned(node):
                for name in _targets(target):
                    found[name].append((node, value))
        return found

    def stores(self, name: str, scope: Scope | None) -> list[tuple[ast.AST, ast.expr]]:
        """What is assigned to a variable that this scope sees, or to an attribute of any object (scope None)."""
        found = self._stores.get(name, [])
        if scope is None:
            return [(node, value) for node, value in found if _stores_attribute(node, name)]
        mine = [(node, value) for node, value in found if self.scope_of(node) is scope]
        outside = [(n, v) for n, v in found if isinstance(self.scope_of(n).node, ast.Module)]
        return mine or ([] if name in scope.parameters else outside)

    def holder(self, name: str, scope: Scope) -> Scope:
        """The scope whose variable a name is in another one: that itself, or a function around it."""
        while scope.outer is not None and name not in scope.parameters and not isinstance(scope.outer.node, ast.Module):
            if any(self.scope_of(node) is scope for node, _ in self._stores.get(name, [])):
                break
            scope = scope.outer
        return scope

    # --- objects -------------------------------------------------------------------------------------------------------------

    def classes_of(self, value: ast.expr, steps: int = STEPS) -> frozenset[str]:
        """The user's classes that the value of an expression may be an instance of, as far as its making can be followed."""
        key = (value, steps)
        if key not in self._bound:
            self._bound[key] = frozenset()  # what is made of itself
            self._bound[key] = frozenset(self._instances(value, steps))
        return self._bound[key]

    def _instances(self, value: ast.expr, steps: int) -> Iterator[str]:
        if steps == 0:
            return
        scope = self.scope_of(value)
        if isinstance(value, ast.Call):
            name = last_word(value.func)
            if name in self.classes:
                yield name
                return
            yield from self._classes_held_by(value.func)
            made = [one for target in self.functions.get(name, ())[:2] for one in self.returned(target)]
            parts = made or [*value.args, *(k.value for k in value.keywords)]
            if isinstance(value.func, ast.Attribute) and not made:
                parts.append(value.func.value)
        elif isinstance(value, ast.Name):
            if value.id == "self" and scope.of_class:
                yield scope.of_class
                return
            parts = [one for _, one in self.stores(value.id, scope)] + self.arguments(scope, value.id)
        elif isinstance(value, ast.Attribute):
            parts = [one for _, one in self.kept_as(value, steps)]
        else:
            parts = [one for one in ast.iter_child_nodes(value) if isinstance(one, ast.expr)]
        for part in parts[:12]:
            yield from self.classes_of(part, steps - 1)

    def kept_as(self, attribute: ast.Attribute, steps: int = STEPS) -> list[tuple[ast.AST, ast.expr]]:
        """(statement, value) of everything that is assigned to this attribute of an object like this one."""
        owners = self.classes_of(attribute.value, steps - 1)
        stored = self.stores(attribute.attr, None)
        return [one for one in stored if self._may_be_of(one[0], attribute.value, owners)]

    def _classes_held_by(self, function: ast.expr) -> Iterator[str]:
        """The classes of which a variable holds one: `kind` of `kind = Logging if first else Plain`."""
        if not isinstance(function, ast.Name) or function.id in self.functions:
            return
        for _, stored in self.stores(function.id, self.scope_of(function))[:4]:
            choice = [stored.body, stored.orelse] if isinstance(stored, ast.IfExp) else [stored]
            yield from (last_word(one) for one in choice if last_word(one) in self.classes)

    def _may_be_of(self, statement: ast.AST, owner: ast.expr, owners: frozenset[str]) -> bool:
        """Whether an attribute that is stored here may be one of `owner`, an instance of these classes (none: unknown)."""
        kept_by = self.scope_of(statement).of_class
        if not kept_by:
            return True
        related = {one for name in owners for one in self._related.get(name, ())}
        return kept_by in related or (not owners and self._is_unknown(owner))

    def returned(self, scope: Scope) -> list[ast.expr]:
        """The values that a function returns or yields."""
        kinds = ast.Return | ast.Yield | ast.YieldFrom
        return [n.value for n in self.inside(scope) if isinstance(n, kinds) and n.value is not None]

    def arguments(self, scope: Scope, parameter: str) -> list[ast.expr]:
        """What the callers of a function pass for one of its parameters."""
        if parameter not in scope.parameters:
            return []
        names = scope.parameters
        at = names.index(parameter) - (1 if scope.of_class and names[:1] in (["self"], ["cls"]) else 0)
        word = scope.of_class if scope.name == "__init__" else scope.name
        return [one for call in self._calls_by_name.get(word, ()) for one in _passed(call, at, parameter)]

    def passed(self, scope: Scope, parameter: str) -> list[ast.expr]:
        """The same, by way of objects that are called as well: `model(x)` for the `x` of its forward."""
        found = self.arguments(scope, parameter)
        if found or parameter not in scope.parameters or scope.name not in _CALLED:
            return found
        at = scope.parameters.index(parameter) - 1
        calls = (node for node in self.callers.get(scope, ()) if isinstance(node, ast.Call))
        return [one for call in calls for one in _passed(call, at, parameter)]

    @cached_property
    def _calls_by_name(self) -> dict[str, list[ast.Call]]:
        found: dict[str, list[ast.Call]] = defaultdict(list)
        for node in self.parents:
            if isinstance(node, ast.Call):
                found[last_word(node.func)].append(node)
        return found

    # --- calls ---------------------------------------------------------------------------------------------------------------

    def targets(self, node: ast.AST) -> list[Scope]:
        """The functions that evaluating this node alone may run: of a call, a property, a loop over an object, a `with`."""
        if isinstance(node, ast.Call):
            return self._called(node)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            return [one for one in self.functions.get(node.attr, ()) if _is_property(one)]
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            return self.methods(self.classes_of(node.iter), *_ITERATED)
        if isinstance(node, ast.withitem):
            return self.methods(self.classes_of(node.context_expr), "__enter__", "__exit__")
        return []

    def _called(self, call: ast.Call) -> list[Scope]:
        function = call.func
        if isinstance(function, ast.Name):
            name = function.id
            if name in self.classes:
                return self.methods({name}, "__init__", "__post_init__")
            if name == "len" and call.args:
                return self.methods(self.classes_of(call.args[0]), "__len__")
            plain = [one for one in self.functions.get(name, ()) if not one.of_class]
            return plain or self.methods(self.classes_of(function), *_CALLED) or self._wrapped(function)
        if isinstance(function, ast.Subscript | ast.IfExp):
            return self._one_of(function)
        if not isinstance(function, ast.Attribute):
            return []
        receiver = self.classes_of(function.value)
        if isinstance(function.value, ast.Call) and getattr(function.value.func, "id", "") == "super":
            receiver = frozenset(self._related.get(self.scope_of(call).of_class, ()))
        found = self.methods(receiver, function.attr)
        if found:
            return found
        held = self.methods(self.classes_of(function), *_CALLED)
        if held or (isinstance(function.value, ast.Name) and function.value.id in self._imported):
            return held
        meant = self.functions.get(function.attr, [])
        return meant if len(meant) <= MOST_MEANT and not receiver and self._is_unknown(function.value) else []

    def _one_of(self, choice: ast.Subscript | ast.IfExp) -> list[Scope]:
        """The functions of which one is called: `PATHS[kind](x)`, `(save if first else skip)(x)`."""
        tables: list[ast.expr] = [choice]
        if isinstance(choice, ast.Subscript):
            tables = [choice.value]
            if isinstance(choice.value, ast.Name | ast.Attribute):
                is_name = isinstance(choice.value, ast.Name)
                scope = self.scope_of(choice) if is_name else None
                tables = [value for _, value in self.stores(last_word(choice.value), scope)[:4]]
        parts = [part for table in tables for part in _parts_of(table)]
        return [one for part in parts for one in self.functions.get(last_word(part), ())][:8]

    def _is_unknown(self, receiver: ast.expr) -> bool:
        """Whether nothing is known of how the object was made, so that it may be one of the user's."""
        if isinstance(receiver, ast.Name):
            scope = self.scope_of(receiver)
            made = self.stores(receiver.id, scope)
            return receiver.id not in self._imported and all(not isinstance(v, ast.Call | ast.BinOp) for _, v in made)
        return isinstance(receiver, ast.Attribute | ast.Subscript)

    def _wrapped(self, function: ast.Name) -> list[Scope]:
        """Inside a decorator, the functions that it decorates: `fn(*args)`."""
        scope = self.scope_of(function)
        outer = self.scopes.get(self.parents.get(scope.node, scope.node)) if scope.node in self.parents else None
        for decorator in (scope, outer):
            if decorator is not None and decorator.parameters[:1] == [function.id]:
                return self._decorated_by.get(decorator.name, [])
        return []

    @cached_property
    def _decorated_by(self) -> dict[str, list[Scope]]:
        found: dict[str, list[Scope]] = defaultdict(list)
        for scope in self.scopes.values():
            for decorator in scope.decorators:
                word = decorator.func if isinstance(decorator, ast.Call) else decorator
                found[last_word(word)].append(scope)
        return found

    @cached_property
    def callers(self) -> dict[Scope, list[ast.AST]]:
        """The nodes that may run a function. One that is only handed around counts as run where it is mentioned."""
        found: dict[Scope, list[ast.AST]] = defaultdict(list)
        for node in self.parents:
            for target in self.targets(node):
                found[target].append(node)
        for name, functions in self.functions.items():
            for one in functions:
                for decorator in one.decorators:
                    word = getattr(decorator, "id", "")
                    found[one] += [n for w in self.functions.get(word, ()) for n in self._runs_first_parameter(w)]
                if not found.get(one):
                    found[one] += [n for n in self._mentions.get(name, ()) if self.scope_of(n) is not one]
        for finalizer in self.functions.get("__del__", ()):
            found[finalizer] += self._keepers(finalizer.of_class)
        for shown in (one for name in _SHOWN for one in self.functions.get(name, ()) if one.of_class):
            found[shown] += self._showers(shown.of_class)
        for scope in [one for one in self.scopes.values() if one.node in self.parents]:
            inner = self.parents[scope.node]
            if inner in self.scopes and isinstance(inner, FunctionNode) and inner.name in self._decorated_by:
                found[scope] += [n for one in self._decorated_by[inner.name] for n in found.get(one, [])
                                 if self.scope_of(n) is not scope]  # fmt: skip
        return found

    def _showers(self, class_name: str) -> list[ast.AST]:
        """What turns an instance of a class into text: an f-string, or a call that it is handed to with a text around it."""
        found: list[ast.AST] = []
        for node in self.parents:
            given: list[ast.expr] = []
            if isinstance(node, ast.FormattedValue):
                given = [node.value]
            elif isinstance(node, ast.Call) and (last_word(node.func) in _SHOWING or _is_text(node.args[:1])):
                given = node.args
            if any(class_name in self.classes_of(one) for one in given):
                found.append(node)
        return found

    def _keepers(self, class_name: str) -> list[ast.AST]:
        """What keeps an instance of a class alive beyond the function that made it, so that it is finalized later."""
        return [
            statement
            for stored in self._stores.values()
            for statement, value in stored
            if isinstance(statement, ast.Call) and class_name in self.classes_of(value)
        ]

    def decorates(self, node: ast.AST) -> bool:
        """Whether an expression stands above a function as its decorator."""
        return node in getattr(self.parents.get(node), "decorator_list", ())

    def runs_of_decorator(self, node: ast.AST) -> list[ast.AST]:
        """The calls in a decorator of the user's that run what it decorates."""
        if not self.decorates(node):
            return []
        word = node.func if isinstance(node, ast.Call) else node
        return [n for one in self.functions.get(getattr(word, "id", ""), ()) for n in self._runs_first_parameter(one)]

    def _runs_first_parameter(self, decorator: Scope) -> list[ast.AST]:
        name = decorator.parameters[0] if decorator.parameters else ""
        return [n for n in ast.walk(decorator.node) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == name]

    @cached_property
    def _mentions(self) -> dict[str, list[ast.AST]]:
        found: dict[str, list[ast.AST]] = defaultdict(list)
        for node in self.parents:
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                found[last_word(node)].append(node)
        return found


def _passed(call: ast.Call, at: int, parameter: str) -> list[ast.expr]:
    named = [k.value for k in call.keywords if k.arg == parameter]
    return named or ([call.args[at]] if 0 <= at < len(call.args) else [])


def _parts_of(table: ast.expr) -> list[ast.expr]:
    """The values that a choice is among."""
    if isinstance(table, ast.IfExp):
        return [table.body, table.orelse]
    return table.values if isinstance(table, ast.Dict) else list(getattr(table, "elts", ()))


def _is_text(nodes: list[ast.expr]) -> bool:
    return any(isinstance(one, ast.Constant) and isinstance(one.value, str) for one in nodes)


def _is_property(scope: Scope) -> bool:
    return any(last_word(one) in ("property", "cached_property") for one in scope.decorators)


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value) of what a node assigns, or puts into something."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _paired(target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield node.target, node.iter
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr
    elif isinstance(node, ast.Call):
        yield from _changed(node)


def _changed(call: ast.Call) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value) of what a call changes in place: `kept.append(x)`, `random.shuffle(order)`, `head.requires_grad_(no)`."""
    function, given = call.func, call.args[-1:] or [call.func]
    if last_word(function) in _CHANGING_ARGUMENT and call.args:
        yield call.args[0], call
    elif isinstance(function, ast.Attribute) and function.attr in _CHANGING:
        yield function.value, given[0]
    elif isinstance(function, ast.Attribute) and _IN_PLACE.fullmatch(function.attr):
        yield function.value, given[0]
        yield ast.Attribute(function.value, function.attr.rstrip("_"), ast.Store()), given[0]


_IN_PLACE = re.compile(r"[a-z]\w*[a-z]_")  # torch's way of naming what changes its tensor or module
_CHANGING_ARGUMENT = frozenset({"shuffle", "heapify", "heappush", "setattr"})
_CHANGING = frozenset(
    {"append", "add", "update", "extend", "insert", "appendleft", "setdefault", "put", "pop", "remove", "set", "clear"}
)


def _paired(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        yield from zip(target.elts, value.elts, strict=True)
    else:
        yield target, value


def _targets(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Attribute):
        yield target.attr
    elif isinstance(target, ast.Subscript | ast.Starred):
        yield from _targets(target.value)
    elif isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _targets(one)


def stores_variable(node: ast.AST, name: str) -> bool:
    """Whether a statement gives a value to the variable of this name, not only to an attribute that is called alike."""
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in ast.walk(node))


def _stores_attribute(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(one, ast.Attribute) and one.attr == name for target, _ in _assigned(node) for one in ast.walk(target)
    )


def program_of(sources: Mapping[str, str]) -> UserProgram:
    """The user's files as one program, parsed once."""
    return _program(tuple(sorted(sources.items())))


@lru_cache(maxsize=8)
def _program(sources: tuple[tuple[str, str], ...]) -> UserProgram:
    return UserProgram.of(dict(sources))
