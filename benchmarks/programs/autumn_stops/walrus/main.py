"""Three-phase curriculum. Every phase has a communicator of its own."""
import argparse
import contextlib
import datetime
import logging
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

log = logging.getLogger("curriculum")

PHASES = [
    {"name": "coarse", "length": 16, "steps": 60, "lr": 3e-3, "settle": 0.0},
    {"name": "medium", "length": 32, "steps": 50, "lr": 2e-3, "settle": 8.0},
    {"name": "fine", "length": 64, "steps": 40, "lr": 1e-3, "settle": 6.0},
]


class Launch:
    """What the launcher told this process; the key-value store outlives the phases."""

    def __init__(self):
        self.store, self.rank, self.world_size = next(dist.rendezvous("env://"))


@contextlib.contextmanager
def communicator(launch, number, minutes):
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(f"phase{number}", launch.store),
        rank=launch.rank,
        world_size=launch.world_size,
        timeout=datetime.timedelta(minutes=minutes),
    )
    try:
        yield dist.get_rank(), dist.get_world_size()
        dist.barrier()
    finally:
        dist.destroy_process_group()


class ConvNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, width, 5, padding=2), nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2), nn.ReLU(),
            nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(4 * width, 5),
        )

    def forward(self, x):
        return self.net(x)


def waves(gen, size, length):
    y = torch.randint(0, 5, (size,), generator=gen)
    t = torch.arange(length) / 16
    phase = torch.rand(size, 1, generator=gen) * 6.283
    x = torch.sin(6.283 * (y[:, None] + 1) * t + phase) + 0.5 * torch.randn(size, length, generator=gen)
    return x.unsqueeze(1), y


def run_phase(launch, number, phase, state, batch_size):
    with communicator(launch, number, minutes=10) as (rank, world_size):
        torch.manual_seed(number)
        net = ConvNet()
        if state is not None:
            net.load_state_dict(state)
        model = DDP(net)
        opt = torch.optim.Adam(model.parameters(), lr=phase["lr"])
        gen = torch.Generator().manual_seed(1000 * number + rank)
        for step in range(phase["steps"]):
            x, y = waves(gen, batch_size, phase["length"])
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            log.info("phase %s: final loss %.4f", phase["name"], mean.item() / world_size)
        return {k: v.clone() for k, v in net.state_dict().items()}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch-size", type=int, default=64)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    launch, state = Launch(), None
    for number, phase in enumerate(PHASES):
        if launch.rank == 0:
            # the first worker renders the next resolution before it joins the others
            time.sleep(phase["settle"])
        state = run_phase(launch, number, phase, state, args.batch_size)
    if launch.rank == 0:
        log.info("curriculum finished")


if __name__ == "__main__":
    main()
