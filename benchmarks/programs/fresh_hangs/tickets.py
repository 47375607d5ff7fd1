"""Training in rounds; between them the ranks draw scoring tickets from a counter in the store."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def draw_tickets(store, name, count):
    while (ticket := store.add(name, 1)) <= count:
        yield ticket - 1


@torch.no_grad()
def score(net, x, tickets):
    total = torch.zeros(2)
    for ticket in tickets:
        time.sleep(0.1 + 0.25 * (ticket % 3))
        rows = x[ticket * 16 : ticket * 16 + 16]
        total += torch.tensor([(net(rows).squeeze(1) - rows.norm(dim=1)).pow(2).sum(), 16.0])
    return total


def wait_for(store, key, world):
    """Watches the counter rather than a barrier so that it can say who is missing."""
    while (there := store.add(key, 0)) < world:
        if dist.get_rank() == 0:
            print(f"{there} of {world} have scored", flush=True)
        time.sleep(0.5)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tickets", type=int, default=16)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("tickets", dist.distributed_c10d._get_default_store())
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(6)
    x = torch.randn(320, 5, generator=gen)
    data = TensorDataset(x, x.norm(dim=1, keepdim=True))
    sampler = DistributedSampler(data, shuffle=True, seed=7)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    net = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))
    model = DDP(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for number in range(args.rounds):
        sampler.set_epoch(number)
        for rows, target in loader:
            time.sleep(0.15)
            loss = ((model(rows) - target) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total = score(net, x, draw_tickets(store, f"round{number}", args.tickets))
        store.add(f"done{number}", 1)
        wait_for(store, f"done{number}", world)
        dist.all_reduce(total)
        if rank == 0:
            print(f"round {number} error {(total[0] / total[1]).item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
