from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn

LIMIT = timedelta(seconds=18)


def rounds(world):
    for i in range(world):
        pair = tuple(sorted({i, (i + 1) % world}))
        yield [pair] + [(r,) for r in range(world) if r not in pair]


class Ring:
    def __init__(self, rank, world):
        self.groups = {}
        for sets in rounds(world):
            m = next(s for s in sets if rank in s)
            self.groups[m] = dist.new_group(list(m), timeout=LIMIT, use_local_synchronization=True)

    def gossip(self, model):
        for m in sorted(k for k in self.groups if len(k) == 2):
            flat = nn.utils.parameters_to_vector(model.parameters()).detach()
            dist.all_reduce(flat, group=self.groups[m])
            nn.utils.vector_to_parameters(flat / 2, model.parameters())


def main():
    dist.init_process_group("gloo", timeout=LIMIT)
    rank, world = dist.get_rank(), dist.get_world_size()
    ring = Ring(rank, world)
    torch.manual_seed(2)
    model = nn.Linear(10, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.03)
    g = torch.Generator().manual_seed(7 * rank + 1)
    for step in range(36):
        x = torch.randn(20, 10, generator=g)
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x).squeeze(1), x @ torch.arange(10.0) / 10)
        loss.backward()
        opt.step()
        if step % 3 == 2:
            ring.gossip(model)
    if rank == 0:
        print(f"loss {float(loss.detach()):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
