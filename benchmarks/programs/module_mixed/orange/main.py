"""Decentralised SGD: neighbours in a ring mix their weights, no global all-reduce in training."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

STEPS, BATCH, MIX_EVERY = 24, 32, 2


class Ring:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.left, self.right = (self.rank - 1) % self.world, (self.rank + 1) % self.world

    def exchange(self, flat):
        from_left, from_right = torch.empty_like(flat), torch.empty_like(flat)
        if self.left == self.right:
            work = [dist.isend(flat, self.right), dist.irecv(from_left, self.left)]
            for w in work:
                w.wait()
            return [from_left]
        work = [dist.isend(flat, self.right, tag=1), dist.isend(flat, self.left, tag=2),
                dist.irecv(from_left, self.left, tag=1), dist.irecv(from_right, self.right, tag=2)]
        for w in work:
            w.wait()
        return [from_left, from_right]


@torch.no_grad()
def mix(model, ring):
    flat = nn.utils.parameters_to_vector(model.parameters())
    got = ring.exchange(flat)
    w = 1.0 / (len(got) + 1)
    nn.utils.vector_to_parameters(w * (flat + sum(got)), model.parameters())


@torch.no_grad()
def consensus_gap(model):
    flat = nn.utils.parameters_to_vector(model.parameters())
    mean = flat.clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    gap = (flat - mean).norm()
    dist.all_reduce(gap, op=dist.ReduceOp.MAX)
    return gap.item()


def stream(rank):
    g = torch.Generator().manual_seed(10 + rank)
    w = torch.randn(16, generator=torch.Generator().manual_seed(0))
    while True:
        x = torch.randn(BATCH, 16, generator=g) + 0.2 * rank
        yield x, (x @ w > 0).float()


def main():
    dist.init_process_group("gloo")
    ring = Ring()
    torch.manual_seed(100 + ring.rank)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = stream(ring.rank)
    for step in range(STEPS):
        x, y = next(data)
        loss = F.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (step + 1) % MIX_EVERY == 0:
            mix(model, ring)
    gap = consensus_gap(model)
    if ring.rank == 0:
        print(f"loss {loss.item():.4f} consensus gap {gap:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
