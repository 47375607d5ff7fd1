"""Where a script that makes its batches by itself makes them."""

from __future__ import annotations

from distdoctor.diagnosis.source.own_batches import batches_of_model, shared_seeds

SOURCE = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

def set_up(config, rank):
    data = torch.randn(99, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(config.seed)
    own = torch.Generator().manual_seed(config.seed + rank)

def get_batch(data):
    rows = torch.randint(len(data), (8,))
    return data[rows], rows

def train(net, data):
    model = DDP(net)
    for _ in range(9):
        inputs, labels = get_batch(data)
        loss = model(inputs).sum()
"""


def test_a_seed_that_is_everybodys_is_named_first_and_none_that_is_made_of_a_rank() -> None:
    assert [text for _, text in shared_seeds({"/job/train.py": SOURCE})] == [
        "torch.manual_seed(config.seed)",
        "torch.Generator().manual_seed(0)",
    ]


def test_what_the_model_is_given_is_followed_to_the_call_that_it_is_taken_from() -> None:
    (line, text), *_ = batches_of_model({"/job/train.py": SOURCE})
    assert (line.line, text) == (
        SOURCE.splitlines().index("        inputs, labels = get_batch(data)") + 1,
        "get_batch(data)",
    )


def test_without_a_wrapped_model_or_a_seed_nothing_is_said() -> None:
    assert batches_of_model({"/job/train.py": "x = 1"}) == shared_seeds({"/job/train.py": "x = 1"}) == []


def test_a_seed_is_followed_out_of_a_function_in_a_function_and_a_simulation_is_seeded_by_its_reset() -> None:
    source = """
def make_env(name, seed):
    def thunk():
        env = make(name)
        env.action_space.seed(seed)
        return env
    return thunk

def main(args, rank):
    envs = Vector([make_env(args.env, args.seed + rank * 8 + number) for number in range(8)])
    envs.reset(seed=args.seed)
"""
    assert [text for _, text in shared_seeds({"/job/train.py": source})] == ["envs.reset(seed=args.seed)"]
