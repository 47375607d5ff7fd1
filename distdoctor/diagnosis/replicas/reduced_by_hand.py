"""Where a program without a wrapper reduces its gradients."""

from __future__ import annotations

from collections import defaultdict

from distdoctor.diagnosis.replicas.gradients import Gradients, ReplicaGroup
from distdoctor.recording.recording import SourceLine
from distdoctor.recording.trace.layout import Op


def reduction_line(gradients: Gradients, peers: ReplicaGroup) -> SourceLine:
    """The user's line that reduces gradients: the one with the most all_reduces of their shapes, or of bytes where they travel
    in buckets."""
    own = gradients.ranks[peers.ranks[0]]
    shapes = {tensor.shape for tensor in own.tensors.values()}
    calls = own.log.calls[own.log.calls["op"] == Op.ALL_REDUCE]
    counts: dict[int, int] = defaultdict(int)
    for call in calls:
        counts[int(call["site"])] += own.log.text(int(call["shape"])) in shapes
    if not any(counts.values()):
        for call in calls:
            counts[int(call["site"])] += int(call["nbytes"])
    best = max(counts, key=lambda site: counts[site], default=0)
    return own.log.site(best) if counts.get(best) else SourceLine()
