"""What the user's source says around a loader: the epoch's variable, the sampler's name, what set_epoch was given."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from distdoctor.diagnosis.source.call_edits import function_of
from distdoctor.diagnosis.source.edits import Edit, row_inserted
from distdoctor.recording.recording import SourceLine


@lru_cache(maxsize=64)
def _tree(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


@dataclass(frozen=True)
class SetEpochCall:
    """`sampler.set_epoch(epochs)`: `receiver` sampler, `argument` epochs, `line` as written."""

    receiver: str
    argument: str
    line: str


def set_epoch_call(sources: Mapping[str, str], site: SourceLine) -> SetEpochCall | None:
    """The call on this line, None when the source is not there."""
    text = sources.get(site.path, "")
    for node in ast.walk(_tree(text) or ast.Module([], [])):
        if not isinstance(node, ast.Call) or not node.lineno <= site.line <= (node.end_lineno or node.lineno):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr == "set_epoch":
            given = node.args[0] if node.args else node.keywords[0].value if node.keywords else None
            argument = ast.unparse(given) if given is not None else ""
            return SetEpochCall(ast.unparse(node.func.value), argument, line_at(text, site.line))
    return None


def epoch_variable(sources: Mapping[str, str], site: SourceLine) -> str:
    """The counter of the loop around this line (`for epoch in range(...)`), "" when the source shows none."""
    around = [loop for loop in _loops(sources.get(site.path, "")) if loop.lineno < site.line <= (loop.end_lineno or 0)]
    for loop in sorted(around, key=lambda loop: -loop.lineno):
        target = loop.target
        if isinstance(target, ast.Tuple) and _called(loop.iter) == "enumerate":
            target = target.elts[0]
        if isinstance(target, ast.Name) and _called(loop.iter) in ("range", "trange", "enumerate", "count", "tqdm"):
            return target.id
    return ""


def sampler_name(sources: Mapping[str, str], made: SourceLine) -> str:
    """How the source calls the sampler of the loader made on this line, "" when it does not say."""
    for node in ast.walk(_tree(sources.get(made.path, "")) or ast.Module([], [])):
        if isinstance(node, ast.Call) and node.lineno <= made.line <= (node.end_lineno or node.lineno):
            for keyword in node.keywords:
                if keyword.arg == "sampler" and isinstance(keyword.value, ast.Name | ast.Attribute):
                    return ast.unparse(keyword.value)
    return ""


def dataset_name(sources: Mapping[str, str], made: SourceLine) -> str:
    """How the source calls the data of the loader made on this line, "" when it does not say."""
    for node in ast.walk(_tree(sources.get(made.path, "")) or ast.Module([], [])):
        if isinstance(node, ast.Call) and node.lineno <= made.line <= (node.end_lineno or node.lineno):
            if not _called(node).endswith("DataLoader"):
                continue
            given = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "dataset")]
            if given and isinstance(given[0], ast.Name | ast.Attribute):
                return ast.unparse(given[0])
    return ""


def line_at(text: str, number: int) -> str:
    """One line of a text, "" when it is not there. Lines count from 1."""
    lines = text.splitlines()
    return lines[number - 1] if 0 < number <= len(lines) else ""


def epoch_told_above(
    sources: Mapping[str, str], loop: SourceLine, made: SourceLine, what: str = "sampler"
) -> tuple[Edit, ...]:
    """The edit that tells the sampler (or the `dataset`) of a loader the epoch, above the `for` that iterates it; () where the
    source does not show the loop, its data and the epoch by name."""
    tree, text = _tree(sources.get(loop.path, "")), sources.get(loop.path, "")
    around = function_of(sources, loop)
    begins = [n for n in ast.walk(tree) if isinstance(n, ast.For) and n.lineno == loop.line] if tree is not None else []
    arguments = [one.arg for one in ast.walk(around) if isinstance(one, ast.arg)] if around is not None else []
    epoch = epoch_variable(sources, loop) or ("epoch" if "epoch" in arguments else "")
    if len(begins) != 1 or not epoch or around is None:
        return ()
    name = sampler_name(sources, made) if what == "sampler" else dataset_name(sources, made)
    if not name or made.path != loop.path or not _holds(around, made.line):
        loader = _iterated(begins[0].iter)
        name = f"{loader}.{what}" if loader else ""
    return row_inserted(loop.path, text, loop.line, f"{name}.set_epoch({epoch})") if name else ()


def _iterated(loop: ast.expr) -> str:
    """The loader in `loader`, `enumerate(loader)`, `tqdm(enumerate(loader), ...)`."""
    while isinstance(loop, ast.Call) and loop.args and _called(loop) in ("enumerate", "tqdm", "iter"):
        loop = loop.args[0]
    return ast.unparse(loop) if isinstance(loop, ast.Name | ast.Attribute) else ""


def _holds(node: ast.AST, line: int) -> bool:
    return isinstance(node, ast.Module) or getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", 0) or 0)


def _loops(text: str) -> list[ast.For]:
    return [node for node in ast.walk(_tree(text) or ast.Module([], [])) if isinstance(node, ast.For)]


def _called(node: ast.expr) -> str:
    """The name of the function that an expression calls, "" when it calls none."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


_DRAWING = frozenset({"shuffle", "randperm", "permutation", "sample", "Random", "default_rng", "RandomState"})


def shuffles_by_epoch(sources: Mapping[str, str], name: str) -> bool:
    """Whether the `__iter__` of a class of this name draws an order and reads something named after the epoch."""
    for text in sources.values():
        for node in ast.walk(_tree(text) or ast.Module([], [])):
            if isinstance(node, ast.ClassDef) and node.name == name:
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef) and inner.name == "__iter__":
                        words = {one.attr if isinstance(one, ast.Attribute) else one.id
                                 for one in ast.walk(inner) if isinstance(one, ast.Attribute | ast.Name)}  # fmt: skip
                        return bool(words & _DRAWING) and any("epoch" in word.lower() for word in words)
    return False
