"""Loops that a rank leaves by a value of its own batch while the others average gradients in them, and healthy twins."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.finding import LIKELY, WARNING
from distdoctor.lint.examine import examine

SICK = """import torch
import torch.distributed as dist


def average(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def train(model, optimizer, loader, target):
    for epoch in range(10):
        for inputs, old in loader:
            new = model(inputs)
            ratio = (new - old).exp()
            kl = ((ratio - 1) - (new - old)).mean()
            loss = -ratio.mean()
            optimizer.zero_grad()
            loss.backward()
            average(model)
            optimizer.step()
        if target is not None and kl > target:
            break
"""
TWINS = {
    "averaged": ("            loss = -", "            dist.all_reduce(kl)\n            loss = -"),
    "averaged as a list": ("            loss = -", "            dist.all_reduce_coalesced([kl])\n            loss = -"),
    "averaged by a helper": ("kl > target", "mean_of_all(kl) > target"),
    "averaged and bound": ("(ratio - 1) - (new - old)).mean()", "reduced(ratio)).mean()"),
    "changed by a helper": ("            loss = -", "            bring_together(kl)\n            loss = -"),
    "averaged in a loop": (
        "            loss = -",
        "            for one in [kl]:\n                dist.all_reduce(one)\n            loss = -",
    ),
    "another value": ("            loss = -", "            kl = share(kl)\n            loss = -"),
    "of other inputs": ("((ratio - 1) - (new - old)).mean()", "model(held_out).mean()"),
    "of what only counts": ("((ratio - 1) - (new - old)).mean()", "epoch / 10"),
    "one process": ("target is not None", "world_size == 1"),
    "nothing is averaged": ("            average(model)\n", ""),
    "no gradients are": ("parameter.grad", "parameter.data"),
    "told to all": ("            break\n", "            dist.barrier()\n            break\n"),
}


def told(source: str) -> list[tuple[str, int]]:
    found = [one for one in examine({"train.py": source}).findings if "leaves the loop" in one.title]
    assert all((one.severity, one.confidence) == (WARNING, LIKELY) for one in found)
    return [(one.code, one.place.line) for one in found]


@pytest.mark.parametrize("value", ["kl", "kl.item()", "float(kl)", "loss.item()", "abs(loss)"])
def test_a_loop_that_a_rank_leaves_by_its_own_value_is_named(value: str) -> None:
    assert told(SICK.replace("kl > target", f"{value} > target")) == [("DD112", 21)]


@pytest.mark.parametrize(("old", "new"), TWINS.values(), ids=TWINS)
def test_a_loop_that_all_ranks_may_leave_together_is_not(old: str, new: str) -> None:
    assert old in SICK
    assert told(SICK.replace(old, new)) == []


AGENT = """import torch
import torch.distributed as dist
from models import Model


class Agent:
    def __init__(self, models: dict[str, Model]):
        self.policy = models.get("policy", None)
        self.optimizer = torch.optim.Adam(self.policy.parameters())

    def update(self, batches, limit):
        for old, inputs in batches:
            _, out = self.policy.act(inputs)
            new = out["log_prob"]
            ratio = new - old
            kl = ((ratio.exp() - 1) - ratio).mean()
            if limit and kl > limit:
                break
            ratio = torch.exp(new - old)
            self.scaler.scale(-ratio.mean()).backward()
            self.policy.reduce_parameters()
            self.scaler.step(self.optimizer)
"""
REDUCING = """import torch
class Model(torch.nn.Module):
    def reduce_parameters(self):
        for parameter in self.parameters():
            torch.distributed.all_reduce(parameter.grad)
"""
ELSEWHERE = "class Model:\n    def reduce_parameters(self, tree):\n        return tree\n"


def lines(agent: str, **others: str) -> list[int]:
    found = examine({"agent.py": agent, **{f"{name}.py": text for name, text in others.items()}}).findings
    return [one.place.line for one in found if one.code == "DD112"]


def test_a_method_that_one_imported_class_has_is_followed_where_its_object_comes_out_of_a_table() -> None:
    assert lines(AGENT, models=REDUCING) == [17]
    assert lines(AGENT, models=REDUCING, jax_models=ELSEWHERE) == [17]  # the file imports one of them
    assert lines(AGENT.replace("from models import Model\n", ""), models=REDUCING, jax_models=ELSEWHERE) == []


def test_a_value_that_is_made_anew_from_several_before_the_exit_is_nobodys() -> None:
    twice = AGENT.replace("            kl = ", "            ratio = share(ratio)\n            kl = ")
    together = AGENT.replace("            if limit", "            dist.all_reduce(kl)\n            if limit")

    assert lines(twice, models=REDUCING) == lines(together, models=REDUCING) == []


WRAPPED = """import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, loader, limit, criterion):
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if loss.item() < limit:
            break
"""
WRAPPED_TWINS = {
    "no wrapper": ("DDP(net)", "net"),
    "past the wrapper": ("model(inputs)", "net(inputs)"),
    "averaged": ("        if loss", "        loss = loss.detach()\n        dist.all_reduce(loss)\n        if loss"),
    "nothing goes backward": ("        loss.backward()\n", ""),
    "joined": ("    for inputs", "    with Join([model]):\n     for inputs"),
}


@pytest.mark.parametrize("leaves", ["break", "return"])
def test_a_loop_with_the_backward_of_a_wrapper_is_left_by_all_or_none(leaves: str) -> None:
    assert told(WRAPPED.replace("break", leaves)) == [("DD112", 14)]


@pytest.mark.parametrize(("old", "new"), WRAPPED_TWINS.values(), ids=WRAPPED_TWINS)
def test_a_loop_without_such_a_backward_is_left_as_each_rank_likes(old: str, new: str) -> None:
    assert old in WRAPPED
    assert told(WRAPPED.replace(old, new)) == []


EPOCHS = WRAPPED.replace(
    """    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if loss.item() < limit:
            break
""",
    """    seen = []
    for epoch in range(10):
        total = 0.0
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            total += loss.item()
        total /= len(loader)
        seen.append(total)
        if len(seen) > 1 and total > seen[-2]:
            break
""",
)


def test_what_is_added_up_of_the_losses_of_an_epoch_is_a_ranks_own() -> None:
    assert told(EPOCHS) == [("DD112", 20)]
    assert told(EPOCHS.replace("        seen.append", "        total = mean_of_all(total)\n        seen.append")) == []
    assert told(EPOCHS.replace("total > seen[-2]", "epoch > limit")) == []


ALONE = """import torch.distributed as dist


def train(loader, rank, patience, model):
    for step, batch in enumerate(loader):
        dist.all_reduce(batch)
        model(batch)
        if step % 10 == 0 and rank == 0:
            if patience.is_over():
                break
        if step > 100:
            break
"""
ALONE_TWINS = {
    "every rank asks": ("step % 10 == 0 and rank == 0", "step % 10 == 0"),
    "told before it leaves": (
        "                break\n        if step",
        "                dist.broadcast(batch, 0)\n                break\n        if step",
    ),
    "others leave by what they were told": ("if step > 100", "if batch.sum() > 100"),
    "told behind the loop": ("            break\n", "            break\n    dist.all_reduce(batch)\n"),
    "no collective in the loop": ("        dist.all_reduce(batch)\n", ""),
}


def alone(source: str) -> list[tuple[str, int]]:
    found = [one for one in examine({"train.py": source}).findings if "leave the loop" in one.title]
    return [(one.code, one.place.line) for one in found]


def test_a_loop_with_collectives_that_one_rank_leaves_is_named() -> None:
    assert alone(ALONE) == [("DD112", 9)]


@pytest.mark.parametrize(("old", "new"), ALONE_TWINS.values(), ids=ALONE_TWINS)
def test_a_loop_that_the_others_may_leave_too_is_not(old: str, new: str) -> None:
    assert old in ALONE
    last = ALONE.rindex(old)
    assert alone(ALONE[:last] + new + ALONE[last + len(old) :]) == []
