"""The question that settles who sends first: by one answer the next message is this one, by the other it is another."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from distdoctor.diagnosis.source.deciding import with_answer
from distdoctor.diagnosis.source.decision import Decision
from distdoctor.diagnosis.source.rank_local import leaves, origin, step_of
from distdoctor.diagnosis.source.source_file import last_word
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.diagnosis.source.ways import way_to
from distdoctor.recording.recording import SourceLine

_MESSAGES = frozenset({"send", "recv", "isend", "irecv", "send_object_list", "recv_object_list"})
CALLS = 3  # from the question to the message


def order_question(sources: Mapping[str, str], site: SourceLine) -> Decision | None:
    """The nearest `if` above a message that leads to messages whichever way it is answered; None where there is none."""
    program = program_of(sources)
    way = way_to(program, site)
    if way is None:
        return None
    near = [scope for scope in sorted(way.nodes, key=lambda one: way.depth[one]) if way.depth[scope] <= CALLS]
    above = (step for scope in near for node in way.nodes[scope] for step in program.above(node))
    for choice in (one for parent, child in above for one in _choices(parent, child)):
        if all(_has_message(program, branch, CALLS) for branch in _branches(program, choice)):
            found, asked = origin(program, choice.test), step_of(program, choice.test)
            led = with_answer(program, found.way, choice.test)
            return Decision.of(replace(asked, text=f"if {asked.text}"), led, found.also)
    return None


def _choices(parent: ast.AST, child: ast.AST) -> Iterator[ast.If]:
    """The `if` that a node stands in, and those before it in its block that leave it."""
    if isinstance(parent, ast.If) and child is not parent.test:
        yield parent
    for block in _blocks(parent):
        if child in block:
            before = block[: block.index(child)]
            yield from (one for one in reversed(before) if isinstance(one, ast.If) and leaves(one.body))


def _branches(program: UserProgram, choice: ast.If) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """What runs by either answer, as far as it differs."""
    if choice.orelse or not leaves(choice.body):
        return choice.body, choice.orelse
    (block,) = (one for one in _blocks(program.parents[choice]) if choice in one)
    return choice.body, block[block.index(choice) + 1 :]


def _blocks(node: ast.AST) -> list[list[ast.stmt]]:
    blocks: list[list[ast.stmt] | None] = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
    return [block for block in blocks if isinstance(block, list)]


def _has_message(program: UserProgram, nodes: Iterable[ast.AST], calls: int) -> bool:
    """Whether these statements send or receive, directly or through functions of the user's."""
    for node in (inner for one in nodes for inner in ast.walk(one)):
        if isinstance(node, ast.Call):
            targets = program.targets(node)
            if not targets and last_word(node.func) in _MESSAGES:
                return True
            if calls and any(_has_message(program, one.node.body, calls - 1) for one in targets if _has_body(one.node)):
                return True
    return False


def _has_body(node: ast.AST) -> bool:
    return isinstance(getattr(node, "body", None), list)
