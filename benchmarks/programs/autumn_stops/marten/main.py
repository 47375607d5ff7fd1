import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

log = logging.getLogger("clinics")

CLINICS = [
    {"name": "north", "visits": 5200},
    {"name": "south", "visits": 2100},
    {"name": "island", "visits": 700},
    {"name": "harbour", "visits": 2600},
]


class ClinicData:
    """Each site keeps its own records; nothing is moved between ranks."""

    def __init__(self, rank, world_size, dim=40):
        self.sites = CLINICS[rank::world_size]
        n = sum(s["visits"] for s in self.sites)
        gen = torch.Generator().manual_seed(50 + rank)
        truth = torch.randn(dim, generator=torch.Generator().manual_seed(1))
        self.x = torch.randn(n, dim, generator=gen)
        risk = torch.sigmoid(self.x @ truth / 3 + 0.2 * rank)
        self.y = (torch.rand(n, generator=gen) < risk).float()

    def __len__(self):
        return len(self.x)

    def epoch(self, number, batch_size):
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(number))
        for chunk in order.split(batch_size):
            yield self.x[chunk], self.y[chunk]


class Net(nn.Module):
    def __init__(self, dim=40, width=160):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(dim, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return self.layers(x).squeeze(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--lr", type=float, default=0.01)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(message)s")
    data = ClinicData(rank, world_size)
    log.info("%s: %d records", "+".join(s["name"] for s in data.sites), len(data))

    torch.manual_seed(0)
    model = DDP(Net())
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    for epoch in range(args.epochs):
        stats = torch.zeros(2, dtype=torch.float64)
        with Join([model], divide_by_initial_world_size=False):
            for x, y in data.epoch(epoch, args.batch_size):
                loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                stats += torch.tensor([loss.item() * len(x), len(x)], dtype=torch.float64)
        # ranks that ran out early hold the parameters of the last joiner from here on
        opt.state.clear()
        dist.all_reduce(stats)
        if rank == 0:
            log.info("epoch %d loss %.4f over %d records", epoch, stats[0] / stats[1], int(stats[1]))

    check = nn.utils.parameters_to_vector(model.parameters()).detach()
    copies = [torch.empty_like(check) for _ in range(world_size)]
    dist.all_gather(copies, check)
    if not all(torch.equal(c, copies[0]) for c in copies):
        raise RuntimeError("replicas differ")
    if rank == 0:
        log.info("replicas agree, done")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
