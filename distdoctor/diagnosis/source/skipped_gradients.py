"""Why a loop that averages gradients by hand leaves some of them out, as its source tells. Pure `ast`.

A condition on the form of a tensor (`p.grad.is_sparse`, `p.dim() > 1`) is about what the collective can carry; one on a name
(`"expert" in name`) or on an attribute of the user's own is about whose the tensor is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.call_edits import calls_at
from distdoctor.diagnosis.source.deciding_tests import tests_around
from distdoctor.diagnosis.source.source_file import last_word
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.recording import SourceLine

LAYOUT, DIMENSIONS, SIZE, DTYPE, NAME = "layout", "dimensions", "size", "dtype", "name"
_FORMS = {
    **dict.fromkeys(("is_sparse", "is_sparse_csr", "layout", "is_coalesced"), LAYOUT),
    **dict.fromkeys(("dim", "ndim", "ndimension"), DIMENSIONS),
    **dict.fromkeys(("numel", "nelement"), SIZE),
    **dict.fromkeys(("dtype", "is_floating_point"), DTYPE),
}
_NEUTRAL = frozenset({"grad", "data", "requires_grad", "is_leaf"})
_OF_NAMES = frozenset({"startswith", "endswith", "lower"})
_TAKES_IN = frozenset({"append", "extend", "add", "insert"})
ROUNDS = 4  # from what is reduced to what it was made of


@dataclass(frozen=True)
class Skip:
    """The condition, as it is written, and the kind of form that it asks for: `LAYOUT`, ... Of a `NAME` the words in it."""

    site: SourceLine
    text: str
    form: str
    words: tuple[str, ...] = ()


def skip_of(sources: Mapping[str, str], reduced: SourceLine) -> Skip | None:
    """The condition on the form of a parameter, or of its gradient, or on its name, that decides whether the all_reduce of a line
    gets it; None where there is none, or where something else of the parameter decides as well: a mark that somebody put on it,
    a name beside a form."""
    program, found = program_of(sources), list[Skip]()
    for call in calls_at(sources, reduced, "all_reduce")[-1:]:
        for test in _tests_of(program, call):
            where, words = program.scope_of(test), _words_in(test)
            forms = [NAME] if words else _forms_in(test)
            if forms is None:
                return None
            found += [Skip(where.line(test), ast.unparse(test), form, words) for form in forms]
    return found[0] if len({one.form == NAME for one in found}) == 1 else None


def _tests_of(program: UserProgram, call: ast.Call) -> Iterator[ast.expr]:
    """The conditions on single parameters under which they come to a call: around it, and around what it was made of."""
    waiting: list[ast.AST] = [call]
    seen: set[ast.AST] = set()
    for _ in range(ROUNDS):
        further: list[ast.AST] = []
        for node in waiting:
            seen.add(node)
            for test in tests_around(program, node):
                if isinstance(test.value, ast.expr) and not test.is_loop and _of_one(program, node, test.value):
                    yield test.value
                elif isinstance(test.value, ast.expr) and test.is_loop:
                    further += _made_of(program, test.value)
            further += _made_of(program, node)
        waiting = [node for node in further if node not in seen]


def _made_of(program: UserProgram, node: ast.AST) -> Iterator[ast.AST]:
    """The comprehensions in an expression, and what fills the variables that it names."""
    scope = program.scope_of(node)
    for inner in ast.walk(node):
        if isinstance(inner, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            yield inner.value if isinstance(inner, ast.DictComp) else inner.elt
            yield from (generator.iter for generator in inner.generators)
        elif isinstance(inner, ast.Name):
            yield from (value for _, value in program.stores(inner.id, scope))
            yield from program.arguments(scope, inner.id)
            calls = (one for one in program.inside(scope) if isinstance(one, ast.Call))
            yield from (one for one in calls if last_word(one.func) in _TAKES_IN and _is_of(one.func, inner.id))


def _is_of(function: ast.expr, name: str) -> bool:
    return isinstance(function, ast.Attribute) and getattr(function.value, "id", "") == name


def _of_one(program: UserProgram, node: ast.AST, test: ast.expr) -> bool:
    """Whether a condition asks for something of what the loops around it go through."""
    above = [parent for parent, _ in program.above(node)]
    loops = [one for one in above if isinstance(one, ast.For)]
    loops += [inner for one in above for inner in getattr(one, "generators", ())]
    names = {name.id for one in loops for name in ast.walk(one.target) if isinstance(name, ast.Name)}
    return any(isinstance(one, ast.Name) and one.id in names for one in ast.walk(test))


def _words_in(test: ast.expr) -> tuple[str, ...]:
    """The words that a condition on a name looks for in it, () when it asks for anything else as well."""
    words: list[str] = []
    for node in ast.walk(test):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.append(node.value)
        elif isinstance(node, ast.Call):
            of_name = isinstance(node.func, ast.Attribute) and node.func.attr in _OF_NAMES
            if not of_name and getattr(node.func, "id", "") not in ("any", "all"):
                return ()
        elif isinstance(node, ast.Attribute) and node.attr not in _OF_NAMES | _NEUTRAL:
            return ()
    return tuple(words)


def _forms_in(test: ast.expr) -> list[str] | None:
    """The forms that a condition asks for; None where it asks for something else as well."""
    forms: list[str] = []
    for node in ast.walk(test):
        if isinstance(node, ast.BinOp) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            return None  # how much is in a bucket already, or what it is called
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Attribute) and node.func.attr in _FORMS):
            return None
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") != "torch":
            if node.attr in _FORMS:
                forms.append(_FORMS[node.attr])
            elif node.attr not in _NEUTRAL:
                return None
    return forms
