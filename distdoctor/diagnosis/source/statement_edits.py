"""Edits of whole statements of the user's source: a row below or above one, one that is dropped, one put under a condition."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from distdoctor.diagnosis.source.call_edits import keyword_of, keyword_set, only_call
from distdoctor.diagnosis.source.edits import Edit, lines_of, rows_replaced
from distdoctor.diagnosis.source.source_file import SourceFile, is_constant, last_word, source_file
from distdoctor.recording.recording import SourceLine

_WRAPPER = "DistributedDataParallel"


def statement_of(sources: Mapping[str, str], site: SourceLine, call: ast.Call) -> ast.Expr | None:
    """The statement that is nothing but this call, with its lines to itself; None where the call is part of another one."""
    file = source_file(sources, site.path)
    parent = file.parent.get(call) if file is not None else None
    alone = isinstance(parent, ast.Expr) and file is not None and _has_its_lines_alone(file, parent)
    return parent if alone and isinstance(parent, ast.Expr) else None


def row_below(sources: Mapping[str, str], path: str, statement: ast.stmt, row: str) -> tuple[Edit, ...]:
    """The edit that puts a row below a statement, at its depth."""
    last = statement.end_lineno or statement.lineno
    return (rows_replaced(path, last + 1, last, [_margin(sources[path], statement) + row]),)


def row_above(sources: Mapping[str, str], path: str, statement: ast.stmt, row: str) -> tuple[Edit, ...]:
    """The edit that puts a row above a statement, at its depth."""
    first = statement.lineno
    return (rows_replaced(path, first, first - 1, [_margin(sources[path], statement) + row]),)


def dropped(sources: Mapping[str, str], path: str, statement: ast.stmt) -> tuple[Edit, ...]:
    """The edit that takes a statement out; `pass` is left where it was its whole block."""
    file = source_file(sources, path)
    block = block_of(file, statement) if file is not None else []
    rows = [] if len(block) > 1 else [f"{_margin(sources[path], statement)}pass"]
    return (rows_replaced(path, statement.lineno, _last(statement), rows),) if block else ()


def under(sources: Mapping[str, str], path: str, statement: ast.stmt, header: str) -> tuple[Edit, ...]:
    """The edit that puts a statement under a header (`if ...:`); () where its text would change with its depth."""
    if any(_over_lines(node) for node in ast.walk(statement)):
        return ()
    rows = [row.rstrip("\r\n") for row in lines_of(sources[path])[statement.lineno - 1 : _last(statement)]]
    indented = [f"    {row}" if row.strip() else row for row in rows]
    return (
        rows_replaced(
            path, statement.lineno, _last(statement), [_margin(sources[path], statement) + header, *indented]
        ),
    )


def block_of(file: SourceFile, statement: ast.stmt) -> list[ast.stmt]:
    """The statements among which one stands; [] where it stands in none."""
    parent = file.parent.get(statement)
    blocks = (getattr(parent, name, None) for name in ("body", "orelse", "finalbody"))
    return next((block for block in blocks if isinstance(block, list) and statement in block), [])


def torch_distributed(file: SourceFile) -> str:
    """What a file calls torch.distributed (`dist`), "" where it does not import it."""
    named = [name for name, meaning in file.imports.items() if meaning == "torch.distributed" and "." not in name]
    written = next(iter(sorted(named, key=lambda name: (name != "dist", name))), "")
    return written or ("torch.distributed" if file.imports.get("torch") == "torch" else "")


def wrapper_told(sources: Mapping[str, str], wrapped: SourceLine, name: str, value: str) -> tuple[Edit, ...]:
    """The edit that gives the DistributedDataParallel of a line `name=value`; () where the line shows no such call."""
    call = wrapper_call(sources, wrapped)
    given = keyword_of(call, name) if call is not None else None
    if call is None or (given is not None and not isinstance(given.value, ast.Constant)):
        return ()  # what a variable says may be meant for other jobs
    return (
        () if given is not None and ast.unparse(given.value) == value else keyword_set(wrapped.path, call, name, value)
    )


def wrapper_call(sources: Mapping[str, str], wrapped: SourceLine) -> ast.Call | None:
    """The call of DistributedDataParallel at a line, by whatever name it was imported."""
    file = source_file(sources, wrapped.path)
    if file is None:
        return None
    names = {name for name, meaning in file.imports.items() if meaning.endswith(f".{_WRAPPER}")} | {_WRAPPER}
    return only_call(sources, wrapped, *names)


def zeroed_after_step(sources: Mapping[str, str], site: SourceLine) -> tuple[Edit, ...]:
    """The edit that zeroes the gradients behind the step of an optimizer, or of a scaler with one."""
    call = only_call(sources, site, "step")
    statement = statement_of(sources, site, call) if call is not None else None
    if call is None or statement is None or call.keywords or not isinstance(call.func, ast.Attribute):
        return ()
    by_scaler = "scale" in last_word(call.func.value).lower()
    optimizer = call.args[0] if by_scaler and len(call.args) == 1 else call.func.value
    if len(call.args) != by_scaler or not isinstance(optimizer, ast.Name | ast.Attribute):
        return ()
    return row_below(sources, site.path, statement, f"{ast.unparse(optimizer)}.zero_grad()")


def waited_for(sources: Mapping[str, str], site: SourceLine, operation: str) -> tuple[Edit, ...]:
    """The edit that waits for the handle which a line gets and drops at once."""
    call = only_call(sources, site, operation)
    statement = statement_of(sources, site, call) if call is not None else None
    asynchronous = keyword_of(call, "async_op") if call is not None else None
    if call is None or statement is None or asynchronous is None or not is_constant(asynchronous.value, True):
        return ()
    line, column = call.end_lineno or 0, call.end_col_offset or 0
    return (Edit(site.path, line, column, line, column, ".wait()"),)


def averaged_below(sources: Mapping[str, str], site: SourceLine) -> tuple[Edit, ...]:
    """The edit that divides a gradient by the number of ranks behind the all_reduce that sums it up."""
    file, call = source_file(sources, site.path), only_call(sources, site, "all_reduce")
    statement = statement_of(sources, site, call) if call is not None else None
    if file is None or call is None or statement is None or not call.args or keyword_of(call, "async_op") is not None:
        return ()
    grad, dist, group = call.args[0], torch_distributed(file), keyword_of(call, "group")
    if not isinstance(grad, ast.Attribute) or grad.attr != "grad" or not dist or len(call.args) > 2:
        return ()
    of = ast.unparse(group.value) if group is not None else ""
    return row_below(sources, site.path, statement, f"{ast.unparse(grad)}.div_({dist}.get_world_size({of}))")


def averaged_once(
    sources: Mapping[str, str], backward: SourceLine, step: SourceLine, wrapped: SourceLine
) -> tuple[Edit, ...]:
    """The edit by which DistributedDataParallel averages only where the optimizer steps (what `no_sync()` sets), above the
    forward; () where the step is not under a condition behind the backward that is known before the forward."""
    file, name = source_file(sources, backward.path), _wrapped_name(sources, wrapped)
    call = only_call(sources, backward, "backward")
    block = block_of(file, file.statement(call)) if file is not None and call is not None else []
    if file is None or call is None or not name or not block or step.path != backward.path or wrapped.path != step.path:
        return ()
    last = block.index(file.statement(call))
    holder = next((n for n in block[last + 1 :] if isinstance(n, ast.If) and n.lineno < step.line <= _last(n)), None)
    forward = next((n for n in block[: last + 1] if name in map(_function, ast.walk(n))), None)
    if holder is None or forward is None or holder.orelse:
        return ()
    asked = {ast.unparse(n) for n in ast.walk(holder.test) if isinstance(n, ast.Name | ast.Attribute)}
    if asked & names_bound(block[block.index(forward) : block.index(holder)]):
        return ()
    row = f"{name}.require_backward_grad_sync = {ast.unparse(holder.test)}"
    return row_above(sources, backward.path, forward, row)


def _wrapped_name(sources: Mapping[str, str], wrapped: SourceLine) -> str:
    """What the wrapped model is called, "" where it gets no name at once."""
    file, call = source_file(sources, wrapped.path), wrapper_call(sources, wrapped)
    made = file.parent.get(call) if file is not None and call is not None else None
    targets = made.targets if isinstance(made, ast.Assign) else []
    return ast.unparse(targets[0]) if len(targets) == 1 and isinstance(targets[0], ast.Name | ast.Attribute) else ""


def _function(node: ast.AST) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def on_rank_zero(sources: Mapping[str, str], site: SourceLine, operation: str) -> tuple[Edit, ...]:
    """The edit by which rank 0 alone makes the call of a line."""
    file, call = source_file(sources, site.path), only_call(sources, site, operation)
    statement = statement_of(sources, site, call) if call is not None else None
    dist = torch_distributed(file) if file is not None else ""
    return under(sources, site.path, statement, f"if {dist}.get_rank() == 0:") if statement is not None and dist else ()


def met_before(sources: Mapping[str, str], site: SourceLine, operation: str) -> tuple[Edit, ...]:
    """The edit that has the ranks meet above the statement of a line that calls this."""
    file, call = source_file(sources, site.path), only_call(sources, site, operation)
    dist = torch_distributed(file) if file is not None else ""
    if file is None or call is None or not dist:
        return ()
    statement = file.statement(call)
    return row_above(sources, site.path, statement, f"{dist}.barrier()") if block_of(file, statement) else ()


def names_bound(statements: Sequence[ast.stmt]) -> set[str]:
    """The names and attributes (`self.step`) that these statements give a value, as they are written."""
    nodes = (node for statement in statements for node in ast.walk(statement))
    return {
        ast.unparse(n) for n in nodes if isinstance(n, ast.Name | ast.Attribute) and not isinstance(n.ctx, ast.Load)
    }


def _margin(text: str, statement: ast.stmt) -> str:
    row = lines_of(text)[statement.lineno - 1]
    return row[: len(row) - len(row.lstrip())]


def _last(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno


def _has_its_lines_alone(file: SourceFile, statement: ast.stmt) -> bool:
    lines = lines_of(file.text)
    before = lines[statement.lineno - 1].encode()[: statement.col_offset].decode()
    after = lines[_last(statement) - 1].encode()[statement.end_col_offset or 0 :].decode().strip()
    return not before.strip() and (not after or after.startswith("#"))


def _over_lines(node: ast.AST) -> bool:
    is_text = isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )
    return is_text and getattr(node, "lineno", 0) != getattr(node, "end_lineno", 0)
