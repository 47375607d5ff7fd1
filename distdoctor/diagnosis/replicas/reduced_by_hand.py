"""Where a program without a wrapper reduces its gradients."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from distdoctor.diagnosis.facts.collectives import members_of
from distdoctor.diagnosis.facts.replicas import calls_of_gradients
from distdoctor.diagnosis.replicas.gradients import Gradients, ReplicaGroup
from distdoctor.diagnosis.source.reduced_gradients import reduces_gradients
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.layout import Op


def came_before_the_last_pass(gradients: Gradients, peers: ReplicaGroup, step: int, line: SourceLine) -> bool:
    """Whether a step made several backward passes, and this line reduced gradients before the last of them alone."""
    own = gradients.ranks[peers.ranks[0]]
    calls, times = own.log.calls, own.log.rows("times")
    calls = calls[calls["step"] + 1 == step]
    mine = calls[[own.log.site(int(site)) == line for site in calls["site"]]]
    row = times[times["step"] == step]
    if not len(mine) or len(row) != 1 or int(row["backwards"][0]) < 2:
        return False
    return bool((mine["entered_ns"] < row["forward_ended_ns"][0]).all())


def reduction_line(gradients: Gradients, peers: ReplicaGroup) -> SourceLine:
    """The user's line that reduces gradients: the one with the most all_reduces of their shapes, or of bytes where they travel
    in buckets. Behind the backward pass where there are some: what the layers themselves send is sent before its end."""
    own = gradients.ranks[peers.ranks[0]]
    shapes = {tensor.shape for tensor in own.tensors.values()}
    sources = gradients.recording.sources
    behind, all_calls = calls_of_gradients(own.log, began="backward_ended_ns", sources=sources), own.log.calls
    calls = next((c for one in (behind, all_calls) if len(c := one[one["op"] == Op.ALL_REDUCE])), all_calls[:0])
    counts: dict[int, int] = defaultdict(int)
    for call in calls:
        counts[int(call["site"])] += own.log.text(int(call["shape"])) in shapes
    if not any(counts.values()):
        for call in calls:
            counts[int(call["site"])] += int(call["nbytes"])
    best = max(counts, key=lambda site: counts[site], default=0)
    return own.log.site(best) if counts.get(best) else SourceLine()


def reduced_in_each_turn(recording: Recording, rank: int, turns: int, least_bytes: int) -> SourceLine:
    """The line that reduces gradients over all ranks at least so many times, as its source tells, and at least so much in each
    turn: more than norms of them. None where there is none."""
    log, everybody = recording.ranks[rank], frozenset(recording.ranks)
    wide = [int(row["key"]) for row in log.groups if members_of(log.text(int(row["members"]))).known == everybody]
    calls = log.calls[np.isin(log.calls["group"], wide)]
    for site in np.unique(calls["site"]):
        mine, line = calls[calls["site"] == site], log.site(int(site))
        enough = len(mine) >= turns and int(mine["nbytes"].sum(dtype=np.uint64)) >= turns * least_bytes
        if enough and reduces_gradients(recording.sources, line):
            return line
    return SourceLine()
