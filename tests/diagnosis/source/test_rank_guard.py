"""Conditions around a line: found, told apart, and worked out for a rank as far as that goes."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.rank_guard import ENCLOSES, LEAVES, Guard, alternatives, guards_at, statement_at
from distdoctor.recording.recording import SourceLine

SOURCE = """\
import torch.distributed as dist

def train(model, loader, rank, best):
    leader = dist.get_rank() == 0
    for step, batch in enumerate(loader):
        if rank == 3 and step == 5:
            continue
        loss = model(batch)
        if loss < best:
            dist.barrier()
        if leader:
            dist.all_reduce(loss)
        else:
            dist.broadcast(loss, 0)
        if not is_main_process():
            return
        save(model)

@rank_zero_only
def save(model):
    dist.barrier()

def lora(rank, matrix_rank, ranks):
    if matrix_rank > 3 or lora_rank == 8:
        dist.barrier()
    if "RANK" in os.environ and os.environ["RANK"] == "0":
        dist.barrier()
"""


def guards(source: str, line: int) -> tuple[Guard, ...]:
    return guards_at({"a.py": source}, SourceLine("a.py", line))


def found(line: int) -> list[tuple[int, str, bool, bool]]:
    return [(g.line, g.how, g.negated, g.on_rank) for g in guards(SOURCE, line)]


def rank_guards(source: str, line: int) -> tuple[Guard, ...]:
    """The conditions around a line that depend on the rank."""
    return tuple(guard for guard in guards(source, line) if guard.on_rank)


def test_a_condition_that_is_not_about_the_rank_is_found_and_said_to_be_none() -> None:
    assert found(10) == [(9, ENCLOSES, False, False), (6, LEAVES, True, True)]


def test_a_variable_made_from_the_rank_counts_as_the_rank() -> None:
    assert found(12)[0] == (11, ENCLOSES, False, True)


@pytest.mark.parametrize(
    ("made", "on_rank"),
    [
        ('self.gpu_id = int(os.environ["LOCAL_RANK"])', True),
        ('self.gpu_id = int(os.environ.get("LOCAL_RANK", 0))', True),
        ('self.gpu_id = int(os.getenv("RANK"))', True),
        ("self.gpu_id = dist.get_rank() % torch.cuda.device_count()", True),
        ("self.gpu_id = model(rank)", False),
        ('self.gpu_id = os.environ["WORLD_SIZE"]', False),
        ("self.gpu_id = table.get(4)", False),
    ],
)
def test_an_attribute_that_holds_the_rank_counts_as_the_rank(made: str, on_rank: bool) -> None:
    """As the tutorials of torch call it."""
    source = f"class Trainer:\n  def __init__(self):\n    {made}\n  def save(self):\n    if self.gpu_id == 0:\n      barrier()\n"

    assert [(guard.line, guard.on_rank) for guard in guards(source, 6)] == [(5, on_rank)]


@pytest.mark.parametrize(
    ("test", "on_rank"),
    [
        ("ddp", False),
        ("args.local_rank != -1", False),
        ("rank is not None", False),
        ('"RANK" in os.environ', False),
        ("rank >= 0", False),
        ("rank > 0", True),
        ("args.local_rank in [-1, 0]", True),
        ("ddp and ddp_rank == 0", True),
        ("main", True),
    ],
)
def test_whether_there_are_ranks_at_all_is_no_question_of_the_rank(test: str, on_rank: bool) -> None:
    made = "ddp = int(os.environ.get('RANK', -1)) != -1\nmain = ddp_rank == 0\n"

    assert [guard.on_rank for guard in guards(f"{made}if {test}:\n  barrier()\n", 4)] == [on_rank]


def test_the_else_branch_is_reached_when_the_condition_is_false() -> None:
    guard = guards(SOURCE, 14)[0]

    assert (guard.negated, guard.only_if) == (True, "not (leader)")


def test_whoever_leaves_before_a_line_does_not_reach_it() -> None:
    guard = guards(SOURCE, 17)[0]

    assert (guard.line, guard.how, guard.lets_through(0), guard.lets_through(1)) == (15, LEAVES, True, False)


def test_a_decorator_lets_rank_zero_through_alone() -> None:
    guard = rank_guards(SOURCE, 21)[0]  # its caller adds the conditions of the line that calls it

    assert (guard.test, guard.lets_through(0), guard.lets_through(2)) == ("@rank_zero_only", True, False)


def test_other_ranks_than_processes_are_no_ranks() -> None:
    assert rank_guards(SOURCE, 25) == ()


def test_the_environment_names_the_rank_too() -> None:
    assert len(rank_guards(SOURCE, 27)) == 1


@pytest.mark.parametrize(
    ("test", "through"),
    [
        ("rank == 0", [0]), ("rank != 0", [1, 2, 3]), ("rank % 2 == 0", [0, 2]), ("rank in (1, 2)", [1, 2]), ("not rank", [0]),
        ("rank > 0 and rank < 3", [1, 2]), ("self.rank == 3", [3]), ("dist.get_rank() == 1", [1]), ("is_main_process()", [0]),
        ("rank == 0 or rank == 3", [0, 3]), ("accelerator.is_main_process", [0]), ("rank not in [0]", [1, 2, 3]),
        ("trainer.is_global_zero", [0]),
    ],
)  # fmt: skip
def test_simple_conditions_are_worked_out(test: str, through: list[int]) -> None:
    (guard,) = guards(f"if {test}:\n    dist.barrier()\n", 2)

    assert guard.on_rank
    assert [rank for rank in range(4) if guard.lets_through(rank)] == through


@pytest.mark.parametrize("test", ["local_rank == 0", "rank == last", "rank == 0 and step > 5", "group_rank == 1"])
def test_what_depends_on_more_than_the_rank_is_left_open(test: str) -> None:
    (guard,) = guards(f"if {test}:\n    dist.barrier()\n", 2)

    assert guard.on_rank
    assert None in [guard.lets_through(rank) for rank in range(4)]


def test_two_branches_of_one_condition_are_alternatives() -> None:
    lines = {line: SourceLine("a.py", line) for line in (10, 12, 14)}
    guard = alternatives({"a.py": SOURCE}, lines[12], lines[14])

    assert guard is not None
    assert guard.line == 11
    assert alternatives({"a.py": SOURCE}, lines[10], lines[12]) is None


def test_a_statement_is_shown_on_one_line() -> None:
    sources = {"a.py": "x = f(\n    1,\n    2,\n)\n", "b.py": "def broken(:\n"}

    assert statement_at(sources, SourceLine("a.py", 3)) == "x = f(1, 2)"
    assert statement_at(sources, SourceLine("b.py", 1)) == ""
    assert statement_at(sources, SourceLine("c.py", 1)) == ""


def test_a_helper_called_in_one_place_stands_under_the_conditions_of_that_place() -> None:
    source = "def average(x):\n    dist.all_reduce(x)\n\ndef main():\n    if dist.get_rank() == 0:\n        print(average(1))\n"

    assert [guard.line for guard in rank_guards(source, 2)] == [5]


def test_a_helper_called_in_two_places_is_under_neither_condition() -> None:
    source = "def average(x):\n    dist.all_reduce(x)\n\nif rank == 0:\n    average(1)\nelse:\n    average(2)\n"

    assert rank_guards(source, 2) == ()


@pytest.mark.parametrize(
    ("source", "tests"),
    [
        ("if rank == 0: dist.barrier()", ["rank == 0"]),
        ("if rank == 0: dist.barrier(); save(model)", ["rank == 0"]),
        ("if total(loss) > 3: stop = True", []),  # the condition itself communicates
        ("loss = dist.all_reduce(x) if rank == 0 else None", ["rank == 0"]),
    ],
)
def test_a_condition_on_the_line_of_the_call_is_seen(source: str, tests: list[str]) -> None:
    assert [guard.test for guard in guards(source, 1)] == tests
