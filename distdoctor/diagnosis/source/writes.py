"""Where the user's source writes into an object that it keeps: a copy of the model, a buffer. Pure `ast`.

`teacher.update(student)`, whose body changes `self.net` in place, is such a line, and so is `teacher.net.load_state_dict(state)`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.deciding_tests import tests_around
from distdoctor.diagnosis.source.given_values import Line, lines_of_way
from distdoctor.diagnosis.source.source_file import Scope, dotted, last_word, lineno
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.diagnosis.source.ways import leads_to
from distdoctor.recording.recording import SourceLine

NOWHERE = SourceLine()
DEEPEST = 3  # calls from a method that writes up to the line outside of its class that began it
ROUNDS = 4  # through which parts of an object get other names: `own = net.state_dict()`, `for p in own.values()`
_IN_PLACE = re.compile(r"[a-z]\w*[a-z]_")  # torch's way of naming what changes its tensor: `lerp_`, `copy_`
_NOT_BITS = frozenset({"requires_grad_", "share_memory_", "retain_grad_"})
_REFRESHES = re.compile(r"(?:update|load|sync|refresh|copy)(?:_|$)")  # what other people's classes call it
_PARTS = frozenset(
    {"parameters", "named_parameters", "buffers", "named_buffers", "state_dict", "values", "items", "modules", "get"}
)
_LOOKS = frozenset({"shape", "size", "numel", "dim", "ndim", "device", "dtype"})
_GATHERS = frozenset({"list", "tuple", "dict", "iter", "enumerate", "zip", "sorted"})


@dataclass(frozen=True, eq=False)
class Write:
    """A line that writes into the object, and what stands there; `inner`: what writes in the method that it calls, or itself."""

    site: SourceLine
    node: ast.AST
    inner: ast.AST


@dataclass(frozen=True, eq=False)
class _Kept:
    """An object by the `name` of the attribute in which instances of a class keep it, or of a variable of a body (`scope`)."""

    program: UserProgram
    name: str
    of_class: str = ""
    scope: Scope | None = None

    def is_it(self, node: ast.AST) -> bool:
        if not self.of_class:
            return isinstance(node, ast.Name) and node.id == self.name and self._is_seen_from(node)
        return (
            isinstance(node, ast.Attribute)
            and node.attr == self.name
            and self.of_class in self.program.classes_of(node.value)
        )

    def _is_seen_from(self, node: ast.Name) -> bool:
        """Whether a name means the variable of that body: there, or of a module where nothing else is called so."""
        here = self.program.scope_of(node)
        of_module = self.scope is not None and isinstance(self.scope.node, ast.Module)
        stored = (self.program.scope_of(statement) for statement, _ in self.program.stores(self.name, here))
        return here is self.scope or (of_module and any(scope is self.scope for scope in stored))

    def is_part(self, node: ast.AST, known: set[str]) -> bool:
        """Whether an expression is the object, a tensor of it, or a collection of these. What it computes is none."""
        if self.is_it(node) or (isinstance(node, ast.Name) and node.id in known):
            return True
        if isinstance(node, ast.Attribute | ast.Subscript):
            return self.is_part(node.value, known)
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Attribute):
            same = node.func.attr in _PARTS or _IN_PLACE.fullmatch(node.func.attr) is not None
            return same and self.is_part(node.func.value, known)
        return last_word(node.func) in _GATHERS and any(self.is_part(one, known) for one in node.args)


def writes_into(sources: Mapping[str, str], label: str, made: SourceLine, used: SourceLine = NOWHERE) -> list[Write]:
    """The lines that write into what `label` (`teacher.net`) names, in the order of the source. What a method of its own class
    writes is told by the line that calls the method; what is written while it is made is left out. [] where the source does not
    show whose it is.

    `made`: where the object was made, `used`: where it computes; no line where that is not known.
    """
    program = program_of(sources)
    kept = _kept(program, label, made, used)
    found: dict[SourceLine, tuple[ast.AST, ast.AST]] = {}
    if kept is None:
        return []
    for scope in program.scopes.values():
        for node in _writes_of(kept, scope):
            for begins in _begun_by(kept, node):
                where = program.scope_of(begins)
                found.setdefault(where.line(begins), (begins, node))
    return sorted(
        (Write(site, *nodes) for site, nodes in found.items()), key=lambda one: (one.site.path, one.site.line)
    )


def is_in_place(name: str) -> bool:
    """Whether a function of this name changes a tensor, as torch calls those that do."""
    return _IN_PLACE.fullmatch(name) is not None and name not in _NOT_BITS


def buffer_writes(sources: Mapping[str, str], names: Iterable[str]) -> list[Line]:
    """The lines that write into buffers of these names (`codebook.ema_counts`), and those that make what is written, in the order
    of the source, with what stands there. [] where the source does not show one class that registers such a buffer."""
    program = program_of(sources)
    found: dict[SourceLine, str] = {}
    for name in {label.rpartition(".")[2] for label in names}:
        classes = {program.scope_of(call).of_class for call in _registrations(program, name)}
        kept = _Kept(program, name, classes.pop()) if len(classes) == 1 else None
        if kept is None:
            continue
        for scope in program.scopes.values():
            for node in _writes_of(kept, scope) if scope.name != "__init__" else ():
                for line, text in lines_of_way(program, [node, *_made_here(program, node)]):
                    found.setdefault(line, text)
    return sorted(found.items(), key=lambda one: (one[0].path, one[0].line))


def accumulated_at(sources: Mapping[str, str], of_class: str, name: str) -> SourceLine:
    """The line in which a method of a class brings a buffer of its own forward: it writes into it, or sets it anew, and has read
    it there or above. No line where the class only keeps its last value in it, or does not write it."""
    program = program_of(sources)
    kept = _Kept(program, name, of_class)
    for scope in program.methods({of_class}, *program.functions) if of_class in program.classes else ():
        nodes = [node for node in program.inside(scope) if scope.name != "__init__"]
        parts = [node for node in nodes if isinstance(node, ast.Attribute) and kept.is_it(node)]
        written = [*_writes_of(kept, scope), *(node for node in parts if isinstance(node.ctx, ast.Store))]
        for write in sorted(written, key=lineno):
            own = {id(one) for one in ast.walk(write)} if isinstance(write, ast.Call) else set()
            reads = [
                one for one in parts if isinstance(one.ctx, ast.Load) and id(one) not in own and _is_value(program, one)
            ]
            if _adds(write) or any(lineno(one) <= lineno(write) for one in reads):
                return scope.line(write)
    return NOWHERE


def is_used_forward(sources: Mapping[str, str], of_class: str, name: str) -> bool:
    """Whether the forward of a class computes with a buffer of its own, beside bringing it forward."""
    return any(True for _ in _forward_reads(program_of(sources), of_class, name))


def _forward_reads(program: UserProgram, of_class: str, name: str) -> Iterator[ast.AST]:
    kept = _Kept(program, name, of_class)
    for scope in program.methods({of_class}, "forward") if of_class in program.classes else ():
        nodes = list(program.inside(scope))
        anew = [node for node in nodes if isinstance(node, ast.Assign) and any(map(kept.is_it, node.targets))]
        writes = {id(one) for write in (*_writes_of(kept, scope), *anew) for one in ast.walk(write)}
        reads = (node for node in nodes if isinstance(node, ast.Attribute) and kept.is_it(node))
        yield from (
            one for one in reads if isinstance(one.ctx, ast.Load) and id(one) not in writes and _is_value(program, one)
        )


def is_used_in_training(sources: Mapping[str, str], of_class: str, name: str) -> bool:
    """Whether the forward of a class computes with a buffer of its own, not only where `self.training` is off, as running
    statistics of a normalisation do."""
    program = program_of(sources)
    return any(not _is_in_evaluation(program, read) for read in _forward_reads(program, of_class, name))


def _is_in_evaluation(program: UserProgram, node: ast.AST) -> bool:
    for test in tests_around(program, node):
        asked, off = test.value, test.negated
        if isinstance(asked, ast.UnaryOp) and isinstance(asked.op, ast.Not):
            asked, off = asked.operand, not off
        if dotted(asked) == "self.training" and off:
            return True
    return False


def scales_what_it_is_given(sources: Mapping[str, str], of_class: str, name: str) -> bool:
    """Whether some function takes what instances of a class keep under a name off something that it is given, or divides that by
    it, and gives something back. One that sets it anew measures how far it is off."""
    program = program_of(sources)
    kept = _Kept(program, name, of_class)
    for scope in program.scopes.values():
        nodes = list(program.inside(scope))
        own = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr == name and kept.is_it(node)]
        returns = any(isinstance(node, ast.Return) and node.value is not None for node in nodes)
        if own and returns and all(isinstance(node.ctx, ast.Load) for node in own):
            made = _made_of(nodes, {*scope.parameters} - {"self"})
            if any(isinstance(one, ast.BinOp) and _scales(one, made, {*map(id, own)}) for one in nodes):
                return True
    return False


def instances_made(sources: Mapping[str, str], of_class: str) -> list[SourceLine]:
    """Where the user's source makes instances of a class outside of it: `Scale(...)`, `Scale.fit(...)`."""
    program = program_of(sources)
    found = []
    for call in (call for file in program.files for call in file.nodes(ast.Call)):
        scope = program.scope_of(call)
        if dotted(call.func).split(".")[0] == of_class and of_class not in (scope.of_class, scope.class_name):
            found.append(scope.line(call))
    return found


def _made_of(nodes: list[ast.AST], names: set[str]) -> set[str]:
    """These variables, and those that are assigned what is made of them."""
    known = set(names)
    for _ in range(ROUNDS):
        for node in nodes:
            if isinstance(node, ast.Assign) and known & {
                one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)
            }:
                known |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return known


def _scales(node: ast.BinOp, made: set[str], own: set[int]) -> bool:
    """Whether one of these variables stands on the left, and one of these attributes on the right, of a minus or a division."""
    left = (isinstance(one, ast.Name) and one.id in made for one in ast.walk(node.left))
    return isinstance(node.op, ast.Sub | ast.Div) and any(left) and any(id(one) in own for one in ast.walk(node.right))


def _is_value(program: UserProgram, read: ast.AST) -> bool:
    """Whether more is asked of a tensor than whether it is there, or what it looks like."""
    above = program.parents[read]
    return not isinstance(above, ast.Compare) and getattr(above, "attr", "") not in _LOOKS


def _adds(write: ast.AST) -> bool:
    """Whether what is written depends on what was there, by the operation itself."""
    name = last_word(write.func) if isinstance(write, ast.Call) else ""
    return isinstance(write, ast.AugAssign) or name.startswith(
        ("add", "lerp", "mul", "sub", "_foreach_add", "_foreach_lerp")
    )


def _registrations(program: UserProgram, name: str) -> Iterator[ast.Call]:
    calls = (node for file in program.files for node in file.nodes(ast.Call) if node.args)
    registers = (call for call in calls if last_word(call.func) == "register_buffer")
    return (call for call in registers if isinstance(call.args[0], ast.Constant) and call.args[0].value == name)


def _made_here(program: UserProgram, node: ast.AST) -> list[ast.expr]:
    """What the variables that are written were assigned in its own body, and what these are made of."""
    scope = program.scope_of(node)
    made = [node.value] if isinstance(node, ast.AugAssign | ast.Assign) else [*getattr(node, "args", ())]
    given = len(made)
    for value in made:
        for one in ast.walk(value):
            stores = program.stores(one.id, scope) if isinstance(one, ast.Name) else []
            made += [new for statement, new in stores if program.scope_of(statement) is scope and new not in made]
    return made[given:]


def own_test(sources: Mapping[str, str], write: Write) -> Line | None:
    """The nearest condition in its own body under which something is written, and what stands there."""
    program = program_of(sources)
    for test in tests_around(program, write.inner):
        if isinstance(test.value, ast.expr) and not test.is_loop and test.value is not write.inner:
            return next(iter(lines_of_way(program, [test.value])))
    return None


def filtered_by_name(sources: Mapping[str, str], write: Write) -> Line | None:
    """The test by which a write passes over names that the object lacks: `if name not in own: continue`. None where there is no
    such test, or where something but a step's number may keep the program from coming there at all."""
    program = program_of(sources)
    nodes = dict.fromkeys((write.inner, write.node))
    tests = [
        part
        for node in nodes
        for test in tests_around(program, node)
        if not test.is_loop and test.value is not node
        for part in _all_of(test.value)
        if not _asks_whether_trained(part)
    ]
    loops = (n for p, _ in program.above(write.inner) if isinstance(p, ast.For) for n in ast.walk(p.target))
    turns = {one.id for one in loops if isinstance(one, ast.Name)}
    by_name = [test for test in tests if _asks_for_one_of(test, turns)]
    if not by_name or not all(test in by_name or _is_every_few_steps(test) for test in tests):
        return None
    return next(iter(lines_of_way(program, by_name[:1])), None)


def _all_of(test: ast.AST) -> list[ast.expr]:
    """What `a and b` asks for."""
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]  # type: ignore[list-item]


def _asks_whether_trained(test: ast.AST) -> bool:
    """`parameter.requires_grad`"""
    return isinstance(test, ast.Attribute) and test.attr == "requires_grad"


def _asks_for_one_of(test: ast.AST, names: set[str]) -> bool:
    """`name in own`"""
    left = test.left if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.In | ast.NotIn) else None
    return isinstance(left, ast.Name) and left.id in names


def _is_every_few_steps(test: ast.AST) -> bool:
    """`step % every == 0`, which the first step fulfils."""
    left = test.left if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq) else None
    return isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod) and isinstance(left.left, ast.Name)


def last_before(sources: Mapping[str, str], writes: list[Write], used: SourceLine) -> Write | None:
    """Of lines that write into an object, the last one before the call that leads to where it is used, in one body."""
    program = program_of(sources)
    for write in reversed(writes):
        statements = (one for one in program.inside(program.scope_of(write.node)) if isinstance(one, ast.stmt))
        below = (one for one in statements if lineno(one) > lineno(write.node))
        if any(leads_to(sources, used, one) for one in below):
            return write
    return None


def _kept(program: UserProgram, label: str, made: SourceLine, used: SourceLine) -> _Kept | None:
    for file in program.files if made else ():
        for node in file.nodes(ast.Assign) if file.path == made.path else ():
            if lineno(node) <= made.line <= (node.end_lineno or 0) and len(node.targets) == 1:
                return _of_target(program, node.targets[0])
    *_, name = label.split(".")
    keepers = {program.scope_of(node).of_class for node, _ in program.stores(name, None)} - {""}
    if "." in label:
        return _Kept(program, name, keepers.pop()) if len(keepers) == 1 else None
    bodies = {scope for scope in program.scopes.values() if scope.bindings.get(name)}
    bodies = {one for one in bodies if one.path == used.path and one.node is one.file.function_at(used.line)} or bodies
    return _Kept(program, name, scope=bodies.pop()) if len(bodies) == 1 and not keepers else None


def _of_target(program: UserProgram, target: ast.expr) -> _Kept | None:
    if isinstance(target, ast.Name):
        return _Kept(program, target.id, scope=program.scope_of(target))
    owner = program.scope_of(target).of_class
    return _Kept(program, target.attr, owner) if isinstance(target, ast.Attribute) and owner else None


def _writes_of(kept: _Kept, scope: Scope) -> Iterator[ast.AST]:
    known = _known_in(kept, scope)
    for node in kept.program.inside(scope):
        if isinstance(node, ast.Call) and _writes(kept, node, known):
            yield node
        elif isinstance(node, ast.AugAssign):
            if kept.is_part(node.target, known):
                yield node
        elif isinstance(node, ast.Assign):
            inside = (
                one for one in node.targets if isinstance(one, ast.Subscript) or getattr(one, "attr", "") == "data"
            )
            if any(isinstance(one, ast.Attribute | ast.Subscript) and kept.is_part(one.value, known) for one in inside):
                yield node


def _writes(kept: _Kept, call: ast.Call, known: set[str]) -> bool:
    name = last_word(call.func)
    if name.startswith("_foreach_") and name.endswith("_"):
        return bool(call.args) and kept.is_part(call.args[0], known)
    if not isinstance(call.func, ast.Attribute) or not kept.is_part(call.func.value, known):
        return False
    if is_in_place(name) or name == "load_state_dict":
        return True
    return bool(_REFRESHES.match(name)) and kept.is_it(call.func.value) and not kept.program.targets(call)


def _known_in(kept: _Kept, scope: Scope) -> set[str]:
    """The names that parts of the object have in a body."""
    known = {
        name
        for name in scope.parameters
        if any(kept.is_part(given, set()) for given in kept.program.passed(scope, name))
    }
    for _ in range(ROUNDS):
        before = len(known)
        for node in kept.program.inside(scope):
            for target, value in _named(node):
                if kept.is_part(value, known):
                    known |= {one.id for one in ast.walk(target) if isinstance(one, ast.Name)}
        if len(known) == before:
            break
    return known


def _named(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value) of an assignment to variables, or of a loop; of `for a, b in zip(x, y)` each with its own."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets if isinstance(target, ast.Name | ast.Tuple))
    elif isinstance(node, ast.For | ast.comprehension):
        target, value = node.target, node.iter
        zipped = value.args if isinstance(value, ast.Call) and last_word(value.func) == "zip" else []
        if zipped and isinstance(target, ast.Tuple) and len(target.elts) == len(zipped):
            yield from zip(target.elts, zipped, strict=True)
        else:
            yield target, value


def _begun_by(kept: _Kept, node: ast.AST, depth: int = DEEPEST) -> Iterator[ast.AST]:
    """The line outside of the object's own class, and of functions that are handed it, from which a write begins."""
    program = kept.program
    scope = program.scope_of(node)
    handed = any(kept.is_part(one, set()) for name in scope.parameters for one in program.passed(scope, name))
    if not handed and not (scope.of_class and scope.of_class == kept.of_class):
        yield node
    elif scope.name != "__init__" and depth:
        for caller in program.callers.get(scope, ()):
            if isinstance(caller, ast.Call) and (not handed or _hands(kept, caller)):
                yield from _begun_by(kept, caller, depth - 1)


def _hands(kept: _Kept, call: ast.Call) -> bool:
    """Whether a call is given the object, or a part of it."""
    return any(kept.is_part(one, set()) for one in (*call.args, *(word.value for word in call.keywords)))
