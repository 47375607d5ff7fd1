"""
DD224 unshifted-targets: a loss over the features of all ranks takes the rows of rank 0 for each rank's own.

What it means    Each rank compares its own rows with those that were gathered from all ranks, and its targets are 0, 1, 2, ...:
                 the rows of rank 0. Only there is the pair of each row where the target says.
Why it hurts     All other ranks pull their samples towards the samples of rank 0. Nothing fails, and the loss falls.
How we know      One function gathers one of two factors and not the other, multiplies them, and gives the loss targets made by
                 arange; nothing in them asks for the rank.
What to do       Add the number of rows on the ranks before: torch.arange(n) + n * rank.
When it is fine  Both sides are gathered; the rank's own rows are put first; targets that are shifted, in any branch.
Source           facebookresearch/moco-v3, moco/builder.py; mlfoundations/open_clip, loss.py (local_loss).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR
from distdoctor.diagnosis.source.source_file import Scope, last_word
from distdoctor.diagnosis.source.unshifted_targets import UnshiftedTargets, unshifted_targets
from distdoctor.lint.program import ParsedFiles
from distdoctor.lint.rule import Sighting, rule


@rule("DD224", "unshifted-targets", severity=ERROR)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for file in program.files:
        for one in unshifted_targets({file.path: file.text}):
            for scope in program.scopes:
                if scope.file is file and (sighting := _sighting(one, scope)) is not None:
                    yield sighting


def _sighting(one: UnshiftedTargets, scope: Scope) -> Sighting | None:
    """None where the loss stands in another function."""
    counts = [node for node in scope.calls if node.lineno == one.made.line and last_word(node.func) == "arange"]
    gathers = [node for node in scope.calls if node.lineno == one.gathered.line]
    if len(counts) != 1 or not gathers:
        return None
    also: tuple[tuple[ast.AST, Scope, str], ...] = ((gathers[0], scope, "gathers the rows of all ranks"),)
    return Sighting(
        node=counts[0],
        scope=scope,
        title="the targets count from 0 on every rank, and the rows that they count were gathered from all ranks",
        why="the rows of rank 0 come first, so the targets of every other rank are rows of rank 0",
        remedy="shift-targets",
        also=also,
    )


SICK = """
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy


@torch.no_grad()
def gather_all(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.cat(parts)


def contrastive(q, k, temperature=0.2):
    k = gather_all(k)
    logits = q @ k.T / temperature
    labels = torch.arange(len(q))
    return cross_entropy(logits, labels)
"""

HEALTHY = SICK.replace("torch.arange(len(q))", "torch.arange(len(q)) + len(q) * dist.get_rank()")
