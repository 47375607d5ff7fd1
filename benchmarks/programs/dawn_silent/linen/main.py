import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from moe import MoE

STEPS, EP_SIZE, DIM, CLASSES = 220, 2, 48, 12


class Net(nn.Module):
    def __init__(self, **moe):
        super().__init__()
        self.inp = nn.Linear(20, DIM)
        self.moe1 = MoE(DIM, 4, 48, **moe)
        self.mid = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, DIM), nn.GELU())
        self.moe2 = MoE(DIM, 4, 48, **moe)
        self.out = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, CLASSES))

    def forward(self, x):
        h, a1 = self.moe1(self.inp(x))
        h, a2 = self.moe2(h + self.mid(h))
        return self.out(h), a1 + a2


def build_groups(rank, world):
    ep_group = edp_group = None
    for start in range(0, world, EP_SIZE):
        ranks = list(range(start, start + EP_SIZE))
        g = dist.new_group(ranks)
        if rank in ranks:
            ep_group = g
    for offset in range(EP_SIZE):
        ranks = list(range(offset, world, EP_SIZE))
        g = dist.new_group(ranks)
        if rank in ranks:
            edp_group = g
    return ep_group, edp_group


def reduce_gradients(model, dense_group, expert_group):
    for p in model.parameters():
        group = expert_group if getattr(p, "expert", False) else dense_group
        dist.all_reduce(p.grad, group=group)
        p.grad.div_(dist.get_world_size())


def main():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    ep_group, edp_group = build_groups(rank, world)
    torch.manual_seed(3)
    model = Net(ep_group=ep_group, ep_rank=rank % EP_SIZE, ep_size=EP_SIZE)
    opt = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9, weight_decay=1e-4)

    teach = torch.Generator().manual_seed(8)
    centers, heads = torch.randn(4, 20, generator=teach) * 2, torch.randn(4, 20, CLASSES, generator=teach)
    stream = torch.Generator().manual_seed(1000 + rank)
    for step in range(STEPS):
        mode = torch.randint(0, 4, (128,), generator=stream)
        x = torch.randn(128, 20, generator=stream)
        y = torch.einsum("nd,ndc->nc", x, heads[mode]).argmax(1)
        logits, balance = model(x + centers[mode])
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        (loss + 0.01 * balance).backward()
        reduce_gradients(model, dist.group.WORLD, edp_group)
        opt.step()
        if step % 40 == 0 or step == STEPS - 1:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"[{step}] ce={mean / world:.4f} balance={balance.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
