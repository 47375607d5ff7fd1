"""Which branches of a training loop one rank enters alone."""

from __future__ import annotations

from distdoctor.diagnosis.source.alone import done_alone
from distdoctor.recording.recording import SourceLine

TRAIN = """
def evaluate(model):
    return model(1)


def one_step(model, batch):
    model(batch).backward()
    optimizer.step()


def train(model, rank):
    if rank == 0:
        prepare(model)
    for step, batch in enumerate(loader):
        one_step(model, batch)
        if rank == 0:
            print(step)
        if rank == 0:
            torch.save(model.state_dict(), "last.pt")
        if step % 10 == 0 and rank == 0:
            evaluate(model)
        if rank < 2:
            evaluate(model)
"""


def test_branches_around_work_in_the_loop_are_found_from_the_line_of_a_step_and_own_functions_come_first() -> None:
    line = TRAIN.splitlines().index("    model(batch).backward()") + 1
    found = done_alone({"train.py": TRAIN}, SourceLine("train.py", line, "one_step"), 0, (1,))

    texts = TRAIN.splitlines()
    assert [test for _, test in found] == ["step % 10 == 0 and rank == 0", "rank == 0"]
    assert "torch.save" in texts[found[1][0].line]
    assert done_alone({"train.py": TRAIN}, SourceLine("train.py", line, "one_step"), 1, (0,)) == []
    assert done_alone({}, SourceLine("train.py", line, "one_step"), 0, (1,)) == []


EXISTS = """
def train(model, rank):
    curves = Curves() if rank == 0 else None
    every = Curves() if rank < 2 else None
    for batch in loader:
        model(batch).backward()
        if curves is not None:
            curves.add(batch)
        if curves and batch:
            curves.write_page()
        if every is not None:
            every.add(batch)
"""


def test_what_is_there_on_one_rank_only_is_asked_for_by_that_rank_alone() -> None:
    found = done_alone({"train.py": EXISTS}, SourceLine("train.py", 6, "train"), 0, (1,))

    assert [test for _, test in found] == ["curves is not None", "curves and batch"]
    assert done_alone({"train.py": EXISTS}, SourceLine("train.py", 6, "train"), 1, (0,)) == []


def test_a_branch_of_the_function_that_the_loop_calls_is_found_before_the_collective_of_that_function() -> None:
    source = """
def score(model, rank):
    total = torch.zeros(1)
    if rank == 0:
        total[0] = measure(model)
    dist.broadcast(total, src=0)

def measure(model):
    return model(1)

def train(model, rank):
    for epoch in range(4):
        one_epoch(model)
        score(model, rank)
        if rank == 0:
            torch.save(model, "last.pt")
"""
    found = done_alone({"train.py": source}, SourceLine("train.py", 6, "score"), 0, (1,))

    assert [line.line for line, _ in found] == [4, 15]
