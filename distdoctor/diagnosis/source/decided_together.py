"""A condition that each rank answers for itself, asked so that all ranks answer alike."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from distdoctor.diagnosis.source.edits import Edit, lines_of, rows_replaced
from distdoctor.diagnosis.source.out_of_condition import every_rank_gets_there
from distdoctor.diagnosis.source.rank_guard import is_about_rank
from distdoctor.diagnosis.source.source_file import Loop, SourceFile, last_word, source_file
from distdoctor.diagnosis.source.statement_edits import torch_distributed
from distdoctor.diagnosis.source.ways import leads_to
from distdoctor.recording.recording import SourceLine

_NAMES = ("votes", "votes_of_ranks", "votes_of_all_ranks")
_LEAVING = ast.Break | ast.Continue | ast.Return
_OF_ALL = frozenset({"all", "any"})  # of a rank's own samples: what the others have left of theirs is not asked
_ORDER = ast.Lt | ast.LtE | ast.Gt | ast.GtE


def decided_together(
    sources: Mapping[str, str], site: SourceLine, test: str, calls: Iterable[SourceLine]
) -> tuple[Edit, ...]:
    """The edits by which the ranks gather their answers to the `if` or `while` of a line, and all do the same.

    They leave as soon as one rank would, and go on only while all would. () where a rank may not come to this line as often as
    the others and between the same calls, or may not do what the others do: the condition is about the rank, about what only
    some have (an object, a file), or in a loop that none of the `calls` is in by which the ranks are known to keep step.
    """
    file = source_file(sources, site.path)
    found = [n for n in file.nodes(ast.If, ast.While) if n.lineno == site.line] if file is not None else []
    if file is None or len(found) != 1 or ast.unparse(found[0].test) != test:
        return ()
    holder, text = found[0], ast.get_source_segment(file.text, found[0].test)
    name, dist = next((one for one in _NAMES if one not in file.text), ""), torch_distributed(file)
    if not (name and dist and text) or "\n" in text or not _may_be_shared(holder):
        return ()
    if not _is_met_by_all(sources, file, site, holder, calls):
        return ()
    votes = [f"{name} = [None] * {dist}.get_world_size()", f"{dist}.all_gather_object({name}, bool({text}))"]
    return _of_loop(file, holder, votes, name) if isinstance(holder, ast.While) else _of_if(file, holder, votes, name)


def _may_be_shared(holder: ast.If | ast.While) -> bool:
    """Whether a rank may do what another one's answer says: leave, stay, or what is done beyond a threshold."""
    asked = {last_word(node.func) for node in ast.walk(holder.test) if isinstance(node, ast.Call)}
    if is_about_rank(holder.test) or asked & _OF_ALL or (isinstance(holder, ast.While) and holder.orelse):
        return False
    only_words = all(isinstance(one, ast.Expr) for one in holder.body[:-1])
    if isinstance(holder, ast.While) or (isinstance(holder.body[-1], _LEAVING) and only_words):
        return True
    compared = [node for node in ast.walk(holder.test) if isinstance(node, ast.Compare)]
    return bool(compared) and all(isinstance(op, _ORDER) for node in compared for op in node.ops)


def _is_met_by_all(
    sources: Mapping[str, str],
    file: SourceFile,
    site: SourceLine,
    holder: ast.If | ast.While,
    calls: Iterable[SourceLine],
) -> bool:
    around = [outer for outer, _ in file.enclosing(holder)]
    if any(isinstance(one, ast.ExceptHandler | ast.Lambda) for one in around):
        return False
    first = holder if isinstance(holder, ast.If) else None
    if first is not None and not every_rank_gets_there(sources, site, first):
        return False
    loop = holder if isinstance(holder, ast.While) else next((one for one in around if isinstance(one, Loop)), None)
    return loop is None or any(leads_to(sources, call, loop) for call in calls)


def _of_if(file: SourceFile, holder: ast.If, votes: list[str], name: str) -> tuple[Edit, ...]:
    line = lines_of(file.text)[holder.lineno - 1]
    margin = line[: len(line) - len(line.lstrip())]
    if not line.lstrip().startswith("if ") or len(margin.encode()) != holder.col_offset:
        return ()  # an elif, or behind something else
    head = "".join(f"{row}\n{margin}" for row in votes) + f"if any({name})"
    end = holder.test
    return (Edit(file.path, holder.lineno, holder.col_offset, end.end_lineno or 0, _behind(file, end), head),)


def _of_loop(file: SourceFile, holder: ast.While, votes: list[str], name: str) -> tuple[Edit, ...]:
    lines, first, test = lines_of(file.text), holder.body[0], holder.test
    inner = lines[first.lineno - 1][: first.col_offset]
    if first.lineno == holder.lineno or inner.strip():
        return ()
    rows = [*(inner + row for row in votes), f"{inner}if not all({name}):", f"{inner}    break"]
    head = Edit(file.path, test.lineno, test.col_offset, test.end_lineno or 0, test.end_col_offset or 0, "True")
    return (head, rows_replaced(file.path, first.lineno, first.lineno - 1, rows))


def _behind(file: SourceFile, test: ast.expr) -> int:
    """The column behind a test and the parentheses that it may stand in."""
    end = test.end_col_offset or 0
    rest = lines_of(file.text)[(test.end_lineno or 1) - 1].encode()[end:].decode()
    colon = rest.find(":")
    return end + len(rest[:colon].encode()) if colon >= 0 and not rest[:colon].strip(") \t") else end
