"""Sums over the ranks that the source divides by how much one of them has, and what looks like that."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.local_divisors import local_divisors

WRONG = {
    "len": "total = rows.sum(dim=0, keepdim=True)\ndist.all_reduce(total)\nself.center = total / len(rows)",
    "shape": "total = rows.sum(0)\ndist.all_reduce(total, op=dist.ReduceOp.SUM)\ntotal /= rows.shape[0]",
    "size, by torch.sum": "total = torch.sum(rows * weights, dim=0)\ndist.all_reduce(total)\ntotal.div_(rows.size(0))",
    "numel": "total = losses.sum()\ndist.all_reduce(total)\nprint(total / losses.numel())",
    "a column": "total = rows[:, 0].sum()\ndist.all_reduce(total)\nmean = total / len(rows)",
    "by a name": "n = len(rows)\ntotal = rows.sum()\ndist.all_reduce(total)\nmean = total / n",
}
RIGHT = {
    "the number of ranks is there": "total = rows.sum(0)\ndist.all_reduce(total)\ntotal = total / (len(rows) * world_size)",
    "divided once more": "total = rows.sum(0)\ndist.all_reduce(total)\ntotal /= len(rows)\ntotal /= dist.get_world_size()",
    "an average": "total = rows.sum(0)\ndist.all_reduce(total, op=dist.ReduceOp.AVG)\ntotal = total / len(rows)",
    "all have counted": "n = len(rows)\nn = count_of_all(n)\ntotal = rows.sum()\ndist.all_reduce(total)\nmean = total / n",
    "another variable": "total = rows.sum(0)\ndist.all_reduce(total)\ntotal = total / len(dataset)",
    "parts of rows": "total = parts.sum(-1)\ndist.all_reduce(total)\nmean = total / parts.shape[0]",
    "its own of all rows": "hit = (model(rows[rank::n]).argmax(1) == 1).sum()\ndist.all_reduce(hit)\nmean = hit / len(rows)",
    "a part of all rows": "hit = torch.sum(rows.tensor_split(n)[rank])\ndist.all_reduce(hit)\nmean = hit / len(rows)",
    "divided before": "total = rows.sum(0) / len(rows)\ndist.all_reduce(total)",
}


def found(body: str) -> list[tuple[int, str]]:
    source = "def update(self, rows, losses):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    return [(one.divided.line, one.rows) for one in local_divisors({"/job/train.py": source})]


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_a_sum_over_the_ranks_divided_by_the_rows_of_one_is_found(body: str) -> None:
    ((line, rows),) = found(body)
    assert line == 1 + len(body.splitlines())
    assert rows in ("rows", "losses")


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_what_mentions_all_ranks_or_divides_by_something_else_is_not(body: str) -> None:
    assert found(body) == []
