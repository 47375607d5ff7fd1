"""Targets of a loss over all ranks' features that forget which rows are the rank's own."""

from __future__ import annotations

from textwrap import dedent

import pytest

from distdoctor.diagnosis.source.unshifted_targets import UnshiftedTargets, unshifted_targets

GATHER = """\
    def gather_all(x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        {put_back}
        return torch.cat({joined})
"""
LOSS = """\
    def contrastive(q, k, rank, temperature=0.2):
        q = F.normalize(q, dim=1)
        k = {gathered}
        logits = {product} / temperature
        n = q.shape[0]
        labels = {labels}
        {shift}
        return F.cross_entropy(logits, labels)
"""


def found(
    *,
    gathered: str = "gather_all(F.normalize(k, dim=1))",
    product: str = "q @ k.T",
    labels: str = "torch.arange(n, device=q.device)",
    shift: str = "pass",
    put_back: str = "parts[dist.get_rank()] = x",
    joined: str = "parts",
) -> list[UnshiftedTargets]:
    gather = dedent(GATHER).format(put_back=put_back, joined=joined)
    loss = dedent(LOSS).format(gathered=gathered, product=product, labels=labels, shift=shift)
    return list(unshifted_targets({"t.py": f"{gather}\n\n{loss}"}))


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"product": 'torch.einsum("nc,mc->nm", [q, k])'},
        {"product": "torch.matmul(q, k.transpose(0, 1))"},
        {"gathered": "torch.cat(dist.nn.functional.all_gather(k))"},
        {"gathered": "torch.cat(GatherLayer.apply(k), dim=0)"},
    ],
    ids=["by @", "einsum", "matmul", "torch's own with gradients", "an autograd function"],
)
def test_targets_that_begin_with_the_first_ranks_rows_are_found(about: dict[str, str]) -> None:
    (one,) = found(**about)

    assert (one.made.line, one.gathered.line, one.product.line, one.loss.line) == (13, 10, 11, 15)
    assert one.edits[0].text == "(torch.arange(n, device=q.device) + n * torch.distributed.get_rank())"


@pytest.mark.parametrize(
    "about",
    [
        {"labels": "torch.arange(n) + n * rank"},
        {"labels": "torch.arange(rank * n, (rank + 1) * n)"},
        {"shift": "if dist.is_initialized(): labels = labels + n * dist.get_rank()"},
        {"product": "gather_all(q) @ k.T"},
        {"gathered": "F.normalize(k, dim=1)"},
        {"joined": "[x, *parts[1:]]"},
        {"put_back": "parts.insert(0, parts.pop(dist.get_rank()))"},
        {"product": "(gather_all(q) @ k.T)[rank * len(q) :]"},
        {"gathered": "k.gather(0, order)"},
    ],
    ids=[
        "shifted",
        "counted from there",
        "shifted in a branch",
        "both sides gathered",
        "nothing gathered",
        "its own rows first",
        "moved to the front",
        "a slice of its own",
        "a selection by an index",
    ],
)
def test_targets_that_mean_the_ranks_own_rows_are_fine(about: dict[str, str]) -> None:
    assert found(**about) == []
