"""Which of two ranks is the odd one, by the expression that gives it another value."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY
from distdoctor.diagnosis.source.rank_choice import singled_out
from distdoctor.recording.recording import SourceLine
from distdoctor.testing import Script

CHECKS = [check for code, check in PLUGINS.checks.items() if code.startswith("DD1")]
CHOICE = """\
def step(rank):
    dtype = torch.float16 if rank == 1 else torch.float32
    x = torch.ones(8, dtype=dtype)
    dist.all_reduce(x)
"""


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (CHOICE, 4),
        ("def step(rank):\n    x = make()\n    if rank == 1:\n        x = x[:2]\n    dist.all_reduce(x)\n", 5),
        ("def step(rank):\n    dist.all_reduce(short if rank == 1 else whole)\n", 2),
        ("def step(rank):\n    dist.all_reduce(whole if rank != 1 else short)\n", 2),
    ],
)
def test_the_rank_that_an_expression_names_is_the_odd_one(source: str, line: int) -> None:
    found = singled_out({"a.py": source}, SourceLine("a.py", line), (1,), (0,))

    assert found is not None
    assert singled_out({"a.py": source}, SourceLine("a.py", line), (0,), (1,)) is None


@pytest.mark.parametrize(
    "source",
    [
        "def step(rank):\n    dist.all_reduce(x)\n",
        "def step(rank):\n    dist.all_reduce(a if rank % 2 else b)\n",
        "def step(rank):\n    dist.all_reduce(a if loss == 1 else b)\n",
        "def step(rank):\n    name = 'a' if rank == 1 else 'b'\n    dist.all_reduce(x)\n",
    ],
)
def test_an_expression_that_names_nobody_accuses_nobody(source: str) -> None:
    line = source.count("\n")

    assert singled_out({"a.py": source}, SourceLine("a.py", line), (1,), (0,)) is None
    assert singled_out({"a.py": source}, SourceLine("a.py", line), (0,), (1,)) is None


def test_a_tie_of_two_ranks_is_likely_the_one_that_the_source_names() -> None:
    script = Script(2).collective("all_reduce", [8], site="train.py:4 step").instead(1, shape="[2]")
    recording = replace(script.live(), sources={"/job/train.py": CHOICE})

    (finding,) = examine(recording, CHECKS).findings

    assert (finding.code, finding.ranks, finding.confidence) == ("DD103", (1,), LIKELY)
    assert "`if rank == 1:` (line 2)" in finding.why
