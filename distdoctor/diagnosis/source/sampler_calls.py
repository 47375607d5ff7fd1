"""What the user's source says around a loader: the epoch's variable, the sampler's name, what set_epoch was given."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distdoctor.diagnosis.source.call_edits import calls_at
from distdoctor.diagnosis.source.edits import Edit, row_inserted
from distdoctor.diagnosis.source.source_file import (
    FunctionNode,
    SourceFile,
    argument,
    keyword,
    last_word,
    opaque,
    source_file,
)
from distdoctor.diagnosis.source.user_program import program_of
from distdoctor.recording.recording import SourceLine

BATCHED = "batch_sampler.sampler"


@dataclass(frozen=True)
class SetEpochCall:
    """`sampler.set_epoch(epochs)`: `receiver` sampler, `argument` epochs, `line` as written."""

    receiver: str
    argument: str
    line: str


def set_epoch_call(sources: Mapping[str, str], site: SourceLine) -> SetEpochCall | None:
    """The call on this line, None when the source is not there."""
    text = sources.get(site.path, "")
    for node in calls_at(sources, site, "set_epoch"):
        if isinstance(node.func, ast.Attribute):
            given = node.args[0] if node.args else node.keywords[0].value if node.keywords else None
            argument = ast.unparse(given) if given is not None else ""
            return SetEpochCall(ast.unparse(node.func.value), argument, line_at(text, site.line))
    return None


def epoch_variable(sources: Mapping[str, str], site: SourceLine) -> str:
    """The counter of the loop around this line (`for epoch in range(...)`), or what its function counts the epochs in
    (`self.epoch += 1`); "" when the source shows neither."""
    file = source_file(sources, site.path)
    if file is None:
        return ""
    loops = file.nodes(ast.For)
    around = [loop for loop in loops if loop.lineno < site.line <= (loop.end_lineno or 0)]
    for loop in sorted(around, key=lambda loop: -loop.lineno):
        target = loop.target
        if isinstance(target, ast.Tuple) and _called(loop.iter) == "enumerate":
            target = target.elts[0]
        if isinstance(target, ast.Name) and _called(loop.iter) in ("range", "trange", "enumerate", "count", "tqdm"):
            return target.id
    counted = {
        ast.unparse(node.target)
        for node in ast.walk(file.function_at(site.line))
        if isinstance(node, ast.AugAssign)
        and isinstance(node.op, ast.Add)
        and "epoch" in last_word(node.target).lower()
    }
    return counted.pop() if len(counted) == 1 else ""


def sampler_name(sources: Mapping[str, str], made: SourceLine) -> str:
    """How the source calls the sampler of the loader made on this line, or its batch sampler, "" when it does not say.

    Of torch's BatchSampler, which cannot be told an epoch, the sampler that it was given.
    """
    for node in calls_at(sources, made):
        given = keyword(node, "sampler") or keyword(node, "batch_sampler")
        inner = _in_batch_sampler(sources, made, node)
        if isinstance(inner, ast.Name | ast.Attribute):
            return ast.unparse(inner)
        if isinstance(given, ast.Name | ast.Attribute):
            return ast.unparse(given) if inner is None else f"{ast.unparse(given)}.sampler"
        loader = _stored_as(sources, made, node) if isinstance(given, ast.Call) else ""
        if loader:
            return f"{loader}.{told_as(sources, made)}"
    return ""


def told_as(sources: Mapping[str, str], made: SourceLine) -> str:
    """The attribute of the loader made on this line that deals out its batches: `sampler`, or `batch_sampler`, or the sampler
    within torch's BatchSampler."""
    for node in calls_at(sources, made):
        if keyword(node, "batch_sampler") is not None:
            return "batch_sampler" if _in_batch_sampler(sources, made, node) is None else BATCHED
    return "sampler"


def _in_batch_sampler(sources: Mapping[str, str], made: SourceLine, call: ast.Call) -> ast.expr | None:
    """What torch's BatchSampler was given to draw from, where the batch sampler of a loader is one."""
    file, given = source_file(sources, made.path), keyword(call, "batch_sampler")
    if isinstance(given, ast.Name) and file is not None:
        stored = [
            one.value
            for one in ast.walk(file.function_at(made.line))
            if isinstance(one, ast.Assign) and any(getattr(target, "id", "") == given.id for target in one.targets)
        ]
        given = stored[0] if len(stored) == 1 else None
    own = any("class BatchSampler" in text for text in sources.values())
    if own or not isinstance(given, ast.Call) or _called(given) != "BatchSampler":
        return None
    return argument(given, 0, "sampler")


def _stored_as(sources: Mapping[str, str], made: SourceLine, call: ast.Call) -> str:
    """The variable or attribute that a call's value is stored in, by itself; "" where it is not."""
    file = source_file(sources, made.path)
    statement = file.statement(call) if file is not None else None
    target = statement.targets[0] if isinstance(statement, ast.Assign) and statement.value is call else None
    return ast.unparse(target) if isinstance(target, ast.Name | ast.Attribute) else ""


def dataset_name(sources: Mapping[str, str], made: SourceLine) -> str:
    """How the source calls the data of the loader made on this line, "" when it does not say."""
    for node in calls_at(sources, made):
        given = argument(node, 0, "dataset") if _called(node).endswith("DataLoader") else None
        if isinstance(given, ast.Name | ast.Attribute):
            return ast.unparse(given)
    return ""


def line_at(text: str, number: int) -> str:
    """One line of a text, "" when it is not there. Lines count from 1."""
    lines = text.splitlines()
    return lines[number - 1] if 0 < number <= len(lines) else ""


def epoch_told_above(
    sources: Mapping[str, str], loop: SourceLine, made: SourceLine, what: str = "sampler"
) -> tuple[Edit, ...]:
    """The edit that tells the sampler (or the `dataset`, the `batch_sampler`) of a loader the epoch, above the `for` that goes
    through it; () where the source does not show the loop, its data and the epoch by name."""
    file = source_file(sources, loop.path)
    if file is None:
        return ()
    around = file.function_at(loop.line)
    begins = [node for node in file.nodes(ast.For) if node.lineno == loop.line]
    arguments = [one.arg for one in ast.walk(around) if isinstance(one, ast.arg)]
    epoch = epoch_variable(sources, loop) or ("epoch" if "epoch" in arguments else "")
    if len(begins) != 1 or not _can_be_told(sources, made, what):
        return ()
    if not epoch:
        return _told_by_the_caller(sources, file, around, _iterated(begins[0].iter), what)
    name = dataset_name(sources, made) if what == "dataset" else sampler_name(sources, made)
    if not name or made.path != loop.path or not _holds(around, made.line):
        loader = _iterated(begins[0].iter)
        name = f"{loader}.{what}" if loader else ""
    return row_inserted(loop.path, file.text, loop.line, f"{name}.set_epoch({epoch})") if name else ()


def _told_by_the_caller(
    sources: Mapping[str, str], file: SourceFile, function: FunctionNode | ast.Module, loader: str, what: str
) -> tuple[Edit, ...]:
    """The same where the function with the loop is called in one place, and that is where the epochs are counted."""
    callers = program_of(sources).callers.get(file.scope_by_node[function], ())
    call = callers[0] if len(callers) == 1 and not isinstance(function, ast.Module) else None
    if not isinstance(call, ast.Call) or call not in file.parent or isinstance(function, ast.Module):
        return ()
    there = file.function_at(call.lineno)
    epoch = epoch_variable(sources, SourceLine(file.path, call.lineno, getattr(there, "name", "<module>")))
    given = _as_given(file, function, call, loader)
    statement = file.statement(call)
    if not (epoch and given) or not isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign):
        return ()
    return row_inserted(file.path, file.text, statement.lineno, f"{given}.{what}.set_epoch({epoch})")


def _as_given(file: SourceFile, function: FunctionNode, call: ast.Call, name: str) -> str:
    """What the caller of a function calls what the function knows under this name; "" where that is not plain."""
    caller, scope = file.scope_of[call], file.scope_by_node[function]
    if name.startswith("self."):
        return name if scope.of_class and caller.of_class == scope.of_class else ""
    parameters = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    if name not in parameters or opaque(call):
        return ""
    place = parameters.index(name) - (bool(scope.of_class) and isinstance(call.func, ast.Attribute))
    given = argument(call, place, name)
    return ast.unparse(given) if isinstance(given, ast.Name | ast.Attribute) else ""


def _can_be_told(sources: Mapping[str, str], made: SourceLine, what: str) -> bool:
    """Whether the loader made on this line has the object that set_epoch is meant for: a batch sampler leaves `loader.sampler`
    as it was, and a data set of somebody's own has the method only where they wrote it. No line: it will be given one."""
    if what == BATCHED:
        return True
    if what != "sampler":  # a batch sampler too is somebody's own
        return any("def set_epoch(" in text for text in sources.values())
    return not made or any(keyword(call, "sampler") is not None for call in calls_at(sources, made, "DataLoader"))


def _iterated(loop: ast.expr) -> str:
    """The loader in `loader`, `enumerate(loader)`, `tqdm(enumerate(loader), ...)`."""
    while isinstance(loop, ast.Call) and loop.args and _called(loop) in ("enumerate", "tqdm", "iter"):
        loop = loop.args[0]
    return ast.unparse(loop) if isinstance(loop, ast.Name | ast.Attribute) else ""


def _holds(node: ast.AST, line: int) -> bool:
    return isinstance(node, ast.Module) or getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", 0) or 0)


def _called(node: ast.expr) -> str:
    """The name of the function that an expression calls, "" when it calls none."""
    return last_word(node.func) if isinstance(node, ast.Call) else ""


DRAWING = frozenset(
    {
        "shuffle",
        "randperm",
        "permutation",
        "permuted",
        "sample",
        "choice",
        "choices",
        "multinomial",
        "randint",
        "rand",
        "random",
    }
    | {"Random", "default_rng", "RandomState"}
)
_TORCHS_SHUFFLING = frozenset({"DistributedSampler", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler"})


def draws_no_order(sources: Mapping[str, str], chain: Sequence[str]) -> bool:
    """Whether a sampler of the user's is among these classes, and nothing in the source of any of them draws at random: they deal
    out a fixed course (by length, a curriculum), whatever a base class says of shuffling."""
    files = [file for path in sources if (file := source_file(sources, path)) is not None]
    known = {node.name: node for file in files for node in file.nodes(ast.ClassDef)}
    names, own = [*chain], list[ast.ClassDef]()
    while names:
        found = known.pop(names.pop(), None)
        if found is not None:
            own.append(found)
            names += [last_word(base) for base in found.bases]  # of these, too, the user's own
    methods = {node.name for one in own for node in one.body if isinstance(node, FunctionNode)}
    words = {last_word(node) for one in own for node in ast.walk(one)}  # `__iter__` among them: of a base class
    return "__iter__" in methods and not words & {*DRAWING, "__iter__"} and not _TORCHS_SHUFFLING & {*chain}
