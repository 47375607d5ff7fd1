"""What is told of tensors that objects of the script's own hold."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from distdoctor.probe.variables import held_by


def test_tensors_are_named_by_attribute_and_key_but_not_by_what_may_be_a_path() -> None:
    one = torch.zeros(1)
    holder = SimpleNamespace(
        mean=one,
        rest=[one, 1, one],
        shadow={"0.weight": one, 7: one, "/data/who/is/ill.png": one, (1, 2): one},
        name="x",
    )
    assert [name for name, _ in held_by(holder)] == [
        "mean",
        "rest[0]",
        "rest[2]",
        "shadow['0.weight']",
        "shadow[7]",
        "shadow[#2]",
        "shadow[#3]",
    ]
