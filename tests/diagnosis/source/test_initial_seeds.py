"""The seed from which the initial weights are drawn, where each rank has its own."""

from __future__ import annotations

from distdoctor.diagnosis.source.edits import applied
from distdoctor.diagnosis.source.initial_seeds import InitialSeed, initial_seed

HEAD = """import os
import torch
from torch import nn

def set_all(value):
    torch.manual_seed(value)

class Net(nn.Module):
    pass

def train(rank, args):
"""
TAIL = """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return optimizer
"""


def _seed(*lines: str) -> InitialSeed | None:
    return initial_seed({"train.py": _source(*lines)})


def _source(*lines: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in lines) + TAIL


def _told(found: InitialSeed | None) -> list[tuple[int, str]]:
    return [(line.line, text) for line, text in found.lines] if found is not None else []


def test_the_last_seed_before_the_model_is_shown_with_what_it_is_made_of() -> None:
    assert _told(_seed("torch.manual_seed(args.seed + rank)", "model = Net()")) == [
        (12, "torch.manual_seed(args.seed + rank)")
    ]
    assert _told(_seed("set_all(7 * int(os.environ['RANK']))", "model = Net()")) == [
        (6, "torch.manual_seed(value)"),
        (12, "7 * int(os.environ['RANK'])"),
    ]
    assert _told(_seed("seed = args.seed", "seed = os.getpid()", "torch.manual_seed(seed)", "model = Net()")) == []
    assert _told(_seed("seed = os.getpid()", "torch.manual_seed(seed)", "model = nn.Linear(2, 2)")) == [
        (13, "torch.manual_seed(seed)"),
        (12, "os.getpid()"),
    ]


def test_a_seed_that_only_some_ranks_set_is_shown_with_its_condition() -> None:
    found = _seed("if rank == 0:", "    torch.manual_seed(1)", "model = Net()")

    assert _told(found) == [(13, "torch.manual_seed(1)"), (12, "rank == 0")]
    assert found is not None
    assert found.only_where


def test_what_leaves_the_weights_alike_is_not_shown() -> None:
    assert _seed("torch.manual_seed(args.seed)", "model = Net()") is None
    assert _seed("torch.manual_seed(rank)", "torch.manual_seed(0)", "model = Net()") is None  # undone
    assert _seed("torch.manual_seed(0)", "model = Net()", "torch.manual_seed(rank)") is None  # for dropout
    assert _seed("torch.manual_seed(0)", "model = DDP(Net())", "torch.manual_seed(rank)") is None
    assert _seed("generator = torch.Generator()", "generator.manual_seed(rank)", "model = Net()") is None
    assert _seed("torch.manual_seed(int(os.environ['SEED']))", "model = Net()") is None


def test_the_edit_takes_the_rank_out_of_what_seeds() -> None:
    for before, after in (
        ("torch.manual_seed(args.seed + rank)", "torch.manual_seed(args.seed)"),
        ("torch.manual_seed(rank)", "torch.manual_seed(0)"),
        ("set_all(1000 * rank + 7)", "set_all(7)"),
        ("torch.manual_seed(7 * rank)", ""),
    ):
        found = _seed(before, "model = Net()")
        assert found is not None
        changed, _ = applied(_source(before, "model = Net()"), found.edits)
        assert changed == _source(after or before, "model = Net()")


def test_a_seed_to_which_the_rank_was_added_above_is_shown_with_that_line() -> None:
    assert _told(_seed("args.seed += rank", "torch.manual_seed(args.seed)", "model = Net()")) == [
        (13, "torch.manual_seed(args.seed)"),
        (12, "args.seed += rank"),
    ]
    assert _told(_seed("args.seed += 1", "torch.manual_seed(args.seed)", "model = Net()")) == []
    assert _told(_seed("torch.manual_seed(args.seed)", "args.seed += rank", "model = Net()")) == []


def test_of_an_adapter_that_is_made_later_the_seed_before_it_counts_as_its_caller_gives_it() -> None:
    source = HEAD.replace(
        "class Net(nn.Module):\n    pass",
        "class Net(nn.Module):\n    pass\n\nclass Adapter(nn.Module):\n    def __init__(self, base):\n"
        "        self.a = nn.Parameter(torch.empty(4))\n",
    )
    body = "    set_all(args.seed)\n    model = Net()\n    set_all(args.seed + rank)\n    model.head = Adapter(model.head)\n"
    sources = {"train.py": source + body + TAIL}
    last = source.count("\n") + 3

    assert _told(initial_seed(sources)) == []
    assert _told(initial_seed(sources, "head.a")) == [(6, "torch.manual_seed(value)"), (last, "args.seed + rank")]
    assert _told(initial_seed(sources, "body.weight")) == []
