"""Where a model is made of its modules, and which of their parameters are meant to be as many as there are ranks."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.made_modules import is_sized_by_ranks, module_made

MODEL = """class Block(nn.Module):
    def __init__(self):
        self.norm = RMSNorm(8)


class Head(nn.Module):
    def __init__(self):
        self.norm = RMSNorm(8)
        self.scale = nn.Parameter(torch.ones(8))


class Model(nn.Module):
    def __init__(self):
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.final_norm = RMSNorm(8)
        self.head = Head()
"""


@pytest.mark.parametrize(
    ("parameter", "line"),
    [
        ("final_norm.weight", 15),
        ("blocks.1.norm.weight", 3),  # of the class of which `blocks` holds instances
        ("head.norm.weight", 8),
        ("head.scale", 16),  # where the module is made that holds it
        ("norm.weight", 0),  # two classes have one
        ("unknown.weight", 0),
    ],
)
def test_the_module_of_a_parameter_is_found_where_it_is_made(parameter: str, line: int) -> None:
    assert module_made({"model.py": MODEL}, parameter).line == line


HEADS = """class HeadNorm(nn.Module):
    def __init__(self, heads, width):
        self.weight = nn.Parameter(torch.ones(heads, width))


class Scale(nn.Module):
    def __init__(self, heads, args):
        self.scale = nn.Parameter(torch.ones(heads // args.tp_size))
        self.shift = nn.Parameter(torch.ones(args.step_size))


class Attention(nn.Module):
    def __init__(self, dim, heads, args):
        self.local = heads // dist.get_world_size()
        self.width, self.ranks = dim // heads, dist.get_world_size()
        self.head_norm = HeadNorm(self.local, width=self.width)
        self.whole_norm = nn.LayerNorm(self.width)
        self.scales = Scale(heads, args)


model = Attention(64, 8, args)
"""


@pytest.mark.parametrize(
    ("parameter", "by_ranks"),
    [
        ("head_norm.weight", True),  # what its class is given goes back to the number of ranks
        ("whole_norm.weight", False),  # ... and of what is assigned in one statement only its own part counts
        ("scales.scale", True),
        ("scales.shift", False),  # `step_size` counts no ranks
        ("unknown.weight", False),
    ],
)
def test_a_parameter_for_each_rank_s_own_heads_is_sized_by_the_ranks(parameter: str, by_ranks: bool) -> None:
    assert is_sized_by_ranks({"model.py": HEADS}, parameter) is by_ranks
