"""Where a class takes the number of its rank from what gives a constant while there is no process group. Pure `ast`.

def world_info():
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1

self.rank, self.world = world_info()      # of an object made before init_process_group, or in a worker process

Or from a variable of another launcher's than the one that has started the job.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from distdoctor.diagnosis.source.given_values import Line, all_made_of, lines_of_way
from distdoctor.diagnosis.source.rank_words import names_some_rank, names_world
from distdoctor.diagnosis.source.source_file import Scope, last_word
from distdoctor.diagnosis.source.user_program import UserProgram, program_of

_ASKS = frozenset({"is_initialized", "is_torchelastic_launched"})
_OF_OTHERS = frozenset({"SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
_NUMBERS = frozenset({"get_rank", "get_world_size"})


def number_without_group(sources: Mapping[str, str], name: str) -> list[Line]:
    """(line, what stands there) where a class takes such a number, then of the constant that it may be given. [] where it takes
    none."""
    program = program_of(sources)
    for file in program.files:
        for node in file.nodes(ast.Assign):
            scope = program.scope_of(node)
            if name in (scope.of_class, scope.class_name) and any(map(_is_number, node.targets)):
                for made in all_made_of(program, node.value):
                    for constant in _fallbacks(program, made):
                        return lines_of_way(program, [node.value, constant])
    return []


def rank_of_another_launcher(sources: Mapping[str, str]) -> list[Line]:
    """(line, what stands there) where the number of the process is read from what mpirun or srun sets, else a constant; at most
    one."""
    program = program_of(sources)
    for file in program.files:
        for call in file.nodes(ast.Call):
            words = [one.value for one in call.args if isinstance(one, ast.Constant)]
            if (
                last_word(call.func) in ("get", "getenv")
                and len(words) == 2 == len(call.args)
                and words[0] in _OF_OTHERS
            ):
                return lines_of_way(program, [call])
    return []


def _is_number(target: ast.expr) -> bool:
    words = [last_word(one) for one in ast.walk(target)]
    return any(names_some_rank(word) or names_world(word) for word in words if word)


def _fallbacks(program: UserProgram, made: ast.expr) -> Iterator[ast.expr]:
    """The constants that an expression is, or may be, for lack of a process group."""
    if _is_constant(made) and isinstance(program.parents.get(made), ast.Return) and _asks(program.scope_of(made)):
        yield made
    for choice in ast.walk(made):
        if isinstance(choice, ast.IfExp) and _calls(choice.test, _ASKS) and _calls(choice, _NUMBERS):
            yield from filter(_is_constant, (choice.body, choice.orelse))


def _asks(scope: Scope) -> bool:
    """Whether a function asks for the number only where there is a process group."""
    tests = [node.test for node in ast.walk(scope.node) if isinstance(node, ast.If)]
    return any(_calls(test, _ASKS) for test in tests) and _calls(scope.node, _NUMBERS)


def _calls(node: ast.AST, names: frozenset[str]) -> bool:
    return any(isinstance(one, ast.Call) and last_word(one.func) in names for one in ast.walk(node))


def _is_constant(value: ast.expr) -> bool:
    return all(isinstance(one, ast.Constant) for one in (value.elts if isinstance(value, ast.Tuple) else [value]))
