"""Where a program without a wrapper reduces its gradients."""

from __future__ import annotations

from collections import defaultdict

from distdoctor.diagnosis.facts.replicas import calls_of_gradients
from distdoctor.diagnosis.replicas.gradients import Gradients, ReplicaGroup
from distdoctor.recording.recording import SourceLine
from distdoctor.recording.trace.layout import Op


def reduction_line(gradients: Gradients, peers: ReplicaGroup) -> SourceLine:
    """The user's line that reduces gradients: the one with the most all_reduces of their shapes, or of bytes where they travel
    in buckets. Behind the backward pass where there are some: what the layers themselves send is sent before its end."""
    own = gradients.ranks[peers.ranks[0]]
    shapes = {tensor.shape for tensor in own.tensors.values()}
    behind, all_calls = calls_of_gradients(own.log, began="backward_ended_ns"), own.log.calls
    calls = next((c for one in (behind, all_calls) if len(c := one[one["op"] == Op.ALL_REDUCE])), all_calls[:0])
    counts: dict[int, int] = defaultdict(int)
    for call in calls:
        counts[int(call["site"])] += own.log.text(int(call["shape"])) in shapes
    if not any(counts.values()):
        for call in calls:
            counts[int(call["site"])] += int(call["nbytes"])
    best = max(counts, key=lambda site: counts[site], default=0)
    return own.log.site(best) if counts.get(best) else SourceLine()
