"""Edits of statements, of conditions that all ranks answer together, and of a loop whose epoch its caller counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.source.branches import are_never_called
from distdoctor.diagnosis.source.call_edits import only_call
from distdoctor.diagnosis.source.decided_together import decided_together
from distdoctor.diagnosis.source.edits import Edit, applied, diff
from distdoctor.diagnosis.source.rank_choice import singled_out, without_choice
from distdoctor.diagnosis.source.sampler_calls import epoch_told_above
from distdoctor.diagnosis.source.statement_edits import (
    averaged_below,
    averaged_once,
    dropped,
    met_before,
    on_rank_zero,
    statement_of,
    waited_for,
    wrapper_told,
    zeroed_after_step,
)
from distdoctor.recording.recording import SourceLine
from distdoctor.testing import recording

IMPORTS = (
    "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
)
AT = "train.py"


def changed(text: str, edits: Sequence[Edit]) -> list[str]:
    """The rows that the edits take out and put in; no lines of IMPORTS."""
    after, _ = applied(text, edits)
    return [row for row in diff(AT, text, after).splitlines()[2:] if row[0] in "+-"]


def on_line(make: Callable[[dict[str, str], SourceLine], tuple[Edit, ...]], body: str, word: str) -> list[str]:
    """What an edit makes of the line of `body` that holds a word."""
    text = IMPORTS + body
    number = next(at for at, row in enumerate(text.splitlines(), 1) if word in row)
    return changed(text, make({AT: text}, SourceLine(AT, number)))


@pytest.mark.parametrize(
    ("row", "zeroed"),
    [
        ("optimizer.step()", "optimizer.zero_grad()"),
        ("self.opt.step()  # now", "self.opt.zero_grad()"),
        ("scaler.step(optimizer)", "optimizer.zero_grad()"),
        ("optimizer.step(closure)", ""),
        ("loss = optimizer.step()", ""),
        ("optimizer.step(); scheduler.step()", ""),
    ],
)
def test_gradients_are_zeroed_behind_a_step_that_is_a_statement(row: str, zeroed: str) -> None:
    rows = on_line(zeroed_after_step, f"def f():\n    {row}\n", ".step(")

    assert rows == ([f"+    {zeroed}"] if zeroed else [])


def test_a_setting_of_the_wrapper_is_given_or_replaced_but_never_taken_from_a_variable() -> None:
    def searching(value: str) -> Callable[[dict[str, str], SourceLine], tuple[Edit, ...]]:
        return lambda sources, site: wrapper_told(sources, site, "find_unused_parameters", value)

    assert on_line(searching("True"), "m = DDP(net)\n", "m =") == [
        "-m = DDP(net)",
        "+m = DDP(net, find_unused_parameters=True)",
    ]
    assert on_line(searching("False"), "m = DDP(\n    net,\n    find_unused_parameters=True,\n)\n", "m =") == [
        "-    find_unused_parameters=True,",
        "+    find_unused_parameters=False,",
    ]
    assert on_line(searching("False"), "m = DDP(net, find_unused_parameters=flag)\n", "m =") == []
    assert on_line(searching("True"), "m = wrap(net)\n", "m =") == []


def test_a_handle_that_is_dropped_at_once_is_waited_for() -> None:
    def waits(sources: dict[str, str], site: SourceLine) -> tuple[Edit, ...]:
        return waited_for(sources, site, "all_reduce")

    assert on_line(waits, "dist.all_reduce(x, async_op=True)\n", "all_reduce") == [
        "-dist.all_reduce(x, async_op=True)",
        "+dist.all_reduce(x, async_op=True).wait()",
    ]
    assert on_line(waits, "work = dist.all_reduce(x, async_op=True)\n", "all_reduce") == []
    assert on_line(waits, "dist.all_reduce(x, async_op=flag)\n", "all_reduce") == []


def test_a_sum_of_gradients_is_divided_by_the_ranks_of_its_group() -> None:
    body = "for p in model.parameters():\n    dist.all_reduce(p.grad, group=dp)\n"

    assert on_line(averaged_below, body, "all_reduce") == ["+    p.grad.div_(dist.get_world_size(dp))"]
    assert on_line(averaged_below, body.replace("p.grad", "flat"), "all_reduce") == []
    assert on_line(averaged_below, body.replace("group=dp", "async_op=True"), "all_reduce") == []


def test_a_save_is_left_to_rank_0_and_a_load_waits_for_all() -> None:
    save, load = 'torch.save({"a": 1},\n           path)\n', "state = torch.load(path)\n"

    assert on_line(lambda sources, site: on_rank_zero(sources, site, "save"), save, "torch.save") == [
        '-torch.save({"a": 1},',
        "-           path)",
        "+if dist.get_rank() == 0:",
        '+    torch.save({"a": 1},',
        "+               path)",
    ]
    assert on_line(lambda sources, site: met_before(sources, site, "load"), load, "torch.load") == ["+dist.barrier()"]


ACCUMULATION = """\
def main(net, opt, loader):
    model = DDP(net)
    for i, batch in enumerate(loader):
        loss = model(batch).mean() / 4
        loss.backward()
        if (i + 1) % 4 == 0:
            opt.step()
"""


def test_gradients_are_averaged_only_where_the_optimizer_steps() -> None:
    def once(body: str) -> list[str]:
        text = IMPORTS + body
        rows = text.splitlines()
        at = [
            SourceLine(AT, next(n for n, row in enumerate(rows, 1) if w in row)) for w in ("backward", "step()", "DDP(")
        ]
        return changed(text, averaged_once({AT: text}, *at))

    counted = ACCUMULATION.replace("        loss = model", "        i = i + 1\n        loss = model")
    assert once(ACCUMULATION) == ["+        model.require_backward_grad_sync = (i + 1) % 4 == 0"]
    assert once(counted) == ["+        model.require_backward_grad_sync = (i + 1) % 4 == 0"]
    assert once(ACCUMULATION.replace("        if", "        i += 1\n        if")) == []
    assert once(ACCUMULATION.replace("model(batch)", "self.model(batch)")) == []


def test_every_rank_is_given_the_value_of_the_others() -> None:
    text = "dist.all_reduce(x.to(torch.float16 if rank == 1 else torch.float32))\n"
    site = SourceLine(AT, 1)

    choice = singled_out({AT: text}, site, [1], [0, 2])

    assert choice is not None
    assert changed(text, without_choice({AT: text}, site, choice, [0, 2])) == [
        f"-{text.rstrip()}",
        "+dist.all_reduce(x.to(torch.float32))",
    ]


LOOP = """\
def fit(model, loader, clock):
    for batch in loader:
        loss = model(batch)
        if ASKED:
            DONE
        loss.backward()
"""


RANK_ZERO = """\
def fit(loader, rank):
    if rank == 0:
        for loss in loader:
            if loss > 1:
                break
            loss.backward()
"""


def together(body: str, test: str, call: str = "loss.backward") -> list[str]:
    """What becomes of the condition of a body; the ranks are known to keep step by a call."""
    text = IMPORTS + body
    rows = text.splitlines()
    asked = next(at for at, row in enumerate(rows, 1) if test in row)
    made = next(at for at, row in enumerate(rows, 1) if call in row)
    return changed(
        text, decided_together({AT: text}, SourceLine(AT, asked, "fit"), test, [SourceLine(AT, made, "fit")])
    )


def test_ranks_leave_as_soon_as_one_of_them_would() -> None:
    body = LOOP.replace("ASKED", "loss.isnan() or clock.over()").replace("DONE", "break")

    assert together(body, "loss.isnan() or clock.over()") == [
        "-        if loss.isnan() or clock.over():",
        "+        votes = [None] * dist.get_world_size()",
        "+        dist.all_gather_object(votes, bool(loss.isnan() or clock.over()))",
        "+        if any(votes):",
    ]


def test_a_loop_goes_on_only_while_all_ranks_would() -> None:
    body = "def fit(clock, x):\n    while not clock.over():\n        dist.all_reduce(x)\n"

    assert together(body, "not clock.over()", "all_reduce") == [
        "-    while not clock.over():",
        "+    while True:",
        "+        votes = [None] * dist.get_world_size()",
        "+        dist.all_gather_object(votes, bool(not clock.over()))",
        "+        if not all(votes):",
        "+            break",
    ]


@pytest.mark.parametrize(
    ("body", "test", "why"),
    [
        (LOOP.replace("ASKED", "rank == 1").replace("DONE", "break"), "rank == 1", "it names the rank"),
        (LOOP.replace("ASKED", "batch.images").replace("DONE", "dist.barrier()"), "batch.images", "not all have them"),
        (LOOP.replace("ASKED", "loss > 1").replace("DONE", "break").replace("backward", "item"), "loss > 1", "no call"),
        (RANK_ZERO, "loss > 1", "others are not there"),
    ],
)
def test_a_condition_that_others_may_not_follow_stays(body: str, test: str, why: str) -> None:
    text = body if "item" not in body else body + "\n\ndef other(loss):\n    loss.backward()\n"

    assert together(text, test, "loss.backward" if "backward" in text else "loss.item") == [], why


CLASS = """\
class Run:
    def epoch(self):
        for batch in self.loader:
            pass
    def all(self):
        for number in range(3):
            self.epoch()
"""


def test_a_sampler_is_told_the_epoch_where_it_is_counted() -> None:
    def told(text: str) -> list[str]:
        at = next(
            number for number, row in enumerate(text.splitlines(), 1) if "in self.loader" in row or "in data" in row
        )
        return changed(text, epoch_told_above({AT: text}, SourceLine(AT, at, "epoch"), SourceLine()))

    plain = (
        "def epoch(model, data):\n    for x in data:\n        pass\n\nfor n in range(3):\n    out = epoch(net, train)\n"
    )
    assert told(CLASS) == ["+            self.loader.sampler.set_epoch(number)"]
    assert told(plain) == ["+    train.sampler.set_epoch(n)"]
    assert told(plain.replace("train)", "make())")) == []
    assert told(plain + "epoch(net, test)\n") == []


def test_a_batch_sampler_is_told_the_epoch_by_its_own_name() -> None:
    text = (
        "loader = DataLoader(data, batch_sampler=Buckets(data))\nfor n in range(3):\n    for x in loader:\n        pass\n"
        "class Buckets:\n    def set_epoch(self, n):\n        self.n = n\n"
    )
    edits = epoch_told_above({AT: text}, SourceLine(AT, 3, "<module>"), SourceLine(AT, 1, "<module>"), "batch_sampler")

    assert changed(text, edits) == ["+    loader.batch_sampler.set_epoch(n)"]


def test_a_barrier_that_is_all_a_function_does_leaves_pass_behind() -> None:
    def without(sources: dict[str, str], site: SourceLine) -> tuple[Edit, ...]:
        call = only_call(sources, site, "barrier")
        statement = statement_of(sources, site, call) if call is not None else None
        return dropped(sources, AT, statement) if statement is not None else ()

    assert on_line(without, "def meet():\n    dist.barrier()\n", "barrier") == ["-    dist.barrier()", "+    pass"]
    assert on_line(without, "opt.step()\ndist.barrier()\n", "barrier") == ["-dist.barrier()"]


def test_a_module_that_is_made_and_mentioned_nowhere_else_is_never_called() -> None:
    text = "class Net:\n    def __init__(self):\n        self.spare = f()\n        self.head = f()\n    def forward(self, x):\n"
    text += "        return self.head(x)\n"

    assert are_never_called({AT: text}, ["spare.weight", "spare.bias"])
    assert not are_never_called({AT: text}, ["spare.weight", "head.bias"])
    assert not are_never_called({AT: text}, ["blocks.3.weight"])


EARLY = """\
import torch.distributed as dist


def fit(model, loader, patience):
    for batch in loader:
        loss = model(batch)
        if loss.item() > patience:
            break
        dist.all_reduce(loss)
    dist.barrier()
"""


@pytest.mark.parametrize("everybody", [True, False])
def test_the_ranks_vote_on_what_let_one_of_them_leave_where_all_come_to_the_question(everybody: bool) -> None:
    ranks = 3 if everybody else 4
    script = recording(ranks=ranks).source("train.py", EARLY).group("replicas", list(range(3)))
    group = "0" if everybody else "replicas"
    for _ in range(3):
        script.collective("all_reduce", [1], group=group, site="train.py:9 fit").step()
    script.collective("all_reduce", [1], group=group, only=[0, 1], site="train.py:9 fit")
    script.collective("barrier", group=group, only=2, site="train.py:10 fit")

    (finding,) = (one for one in examine(script.live(), PLUGINS.checks.values()).findings if one.code == "DD101")
    patches = [cure.patch.text for cure in finding.prescriptions if cure.patch is not None]

    assert "decide once for all ranks" in finding.prescriptions[0].change
    assert [("any(votes)" in text) for text in patches] == ([True] if everybody else [])
