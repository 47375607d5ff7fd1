"""What divides a loss before its backward pass, and which division is for nothing."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.batch_shares import blocks_by_rank
from distdoctor.diagnosis.source.loss_divisions import divisions_before, dropped_division, term_over_all
from distdoctor.recording.source_line import SourceLine

LOSS = """def token_loss(logits, tags):
    tokens = (tags != 0).sum()
    dist.all_reduce(tokens)
    total = cross_entropy(logits / 7, tags, reduction="sum")
    return total / tokens


def train(model, args):
    for x, y in data:
        loss = token_loss(model(x), y)
        loss /= args.accumulation
        scaler.scale(loss).backward()
        shown = loss / 3
"""


def test_the_divisions_of_a_loss_are_found_from_its_backward_on() -> None:
    found = divisions_before({"train.py": LOSS}, SourceLine("train.py", 12, "train"))

    assert [(one.site.line, one.divisor, one.agreed) for one in found] == [
        (11, "args.accumulation", False),
        (5, "tokens", True),  # what is done to the logits, or to the loss later, is none of it
    ]


def test_a_loss_that_nobody_divides_has_none() -> None:
    source = "loss = criterion(model(x / 255), y) * 2\nloss.backward()\n"

    assert divisions_before({"train.py": source}, SourceLine("train.py", 2, "<module>")) == []


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("flat.div(world)", 3),
        ("flat.div_(world)", 0),
        ("flat = flat.div(world)", 0),
        ("torch.div(flat, 2, out=flat)", 0),
    ],
)
def test_a_division_whose_result_is_dropped_is_found_beside_the_reduction(statement: str, line: int) -> None:
    source = f"def reduce(flat, world):\n    dist.all_reduce(flat)\n    {statement}\n    return flat\n"

    assert dropped_division({"train.py": source}, SourceLine("train.py", 2, "reduce")).line == line


@pytest.mark.parametrize(
    ("share", "found"),
    [
        ("batch[rank * n : (rank + 1) * n]", 1),
        ("batch.chunk(world)[rank]", 1),
        ("batch[rank::world]", 0),
        ("islice(batch, rank, None, world)", 0),
        ("batch[:n]", 0),
    ],
)
def test_a_block_of_neighbours_is_no_strided_share(share: str, found: int) -> None:
    assert len(blocks_by_rank({"train.py": f"def scatter(batch, rank, world, n):\n    return {share}\n"})) == found


TERMS = """class Criterion(nn.Module):
    def boxes(self, out, targets, num_boxes):
        return {{"box": l1_loss(out, targets, reduction="sum") / num_boxes}}

    def forward(self, out, targets):
        num_boxes = torch.as_tensor([sum(len(t) for t in targets)])
        {together}
        num_boxes = torch.clamp({count}, min=1).item()
        return {{**self.labels(out, targets), **self.boxes(out, targets, num_boxes)}}


def train(model, loader):
    criterion = Criterion()
    for x, targets in loader:
        losses = criterion(model(x), targets)
        loss = sum(losses[name] * weights[name] for name in losses)
        {scaled}
        loss.backward()
"""
SUMMED = "dist.all_reduce(num_boxes)"


@pytest.mark.parametrize(
    ("together", "count", "scaled", "line"),
    [
        (SUMMED, "num_boxes", "pass", 3),
        (SUMMED, "num_boxes / get_world_size()", "pass", 0),
        (f"{SUMMED}; num_boxes /= get_world_size()", "num_boxes", "pass", 0),
        (f"{SUMMED}; num_boxes.div_(world_size)", "num_boxes", "pass", 0),
        ("pass", "num_boxes", "pass", 0),
        ("dist.broadcast(num_boxes, 0)", "num_boxes", "pass", 0),
        (SUMMED, "num_boxes", "loss = loss * world_size", 0),
    ],
    ids=[
        "over all ranks",
        "their mean",
        "divided in place",
        "by a method",
        "of each rank",
        "rank 0's",
        "scaled afterwards",
    ],
)
def test_terms_that_are_divided_by_a_count_over_all_ranks_are_found(
    together: str, count: str, scaled: str, line: int
) -> None:
    source = TERMS.format(together=together, count=count, scaled=scaled)
    found = term_over_all({"train.py": source}, SourceLine("train.py", 18, "train"))

    assert (found.site.line, found.divisor, found.summed_at.line) == (line, "num_boxes", 7) if found else not line
