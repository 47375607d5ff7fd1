"""Which buffers are looked at: those that a checkpoint would hold."""

from __future__ import annotations

import torch
from torch import nn

from distdoctor.probe.tensors.module_trees import buffers_of


def test_a_buffer_that_is_not_saved_is_a_cache() -> None:
    root = nn.Sequential(nn.BatchNorm1d(3))
    root.register_buffer("codebook", torch.zeros(2))
    root[0].register_buffer("cache", torch.zeros(2), persistent=False)

    names = [held.name for held, _ in buffers_of(root)]
    assert names == ["codebook", "0.running_mean", "0.running_var", "0.num_batches_tracked"]
