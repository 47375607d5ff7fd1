import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from experts import ExpertLayer


class Net(nn.Module):
    def __init__(self, dim, classes, hidden):
        super().__init__()
        self.inp = nn.Linear(dim, 96)
        self.moe = ExpertLayer(96, hidden)
        self.out = nn.Linear(96, classes)

    def forward(self, x):
        h, aux = self.moe(F.gelu(self.inp(x)))
        return self.out(h), aux


def reduce_gradients(net):
    world = dist.get_world_size()
    local = {id(p) for p in net.moe.local_parameters()}
    shared = [p for p in net.parameters() if id(p) not in local]
    flat = torch.cat([p.grad.flatten() for p in shared])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for p in shared:
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()
    for p in net.moe.local_parameters():
        p.grad /= world


def clip(net, limit):
    local = {id(p) for p in net.moe.local_parameters()}
    mine = sum(p.grad.pow(2).sum() for p in net.parameters() if id(p) in local)
    dist.all_reduce(mine)
    total = (mine + sum(p.grad.pow(2).sum() for p in net.parameters() if id(p) not in local)).sqrt()
    scale = (limit / (total + 1e-6)).clamp(max=1.0)
    for p in net.parameters():
        p.grad *= scale
    return total.item()


def make(n, seed, domains=4, dim=40, classes=6):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(domains, dim, classes, generator=torch.Generator().manual_seed(0))
    d = torch.randint(0, domains, (n,), generator=g)
    x = torch.randn(n, dim, generator=g)
    x[:, :domains] += 3 * F.one_hot(d, domains)
    return x, torch.einsum("nd,ndc->nc", x, w[d]).argmax(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=600)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--aux", type=float, default=0.02)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = Net(40, 6, 128)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    x, y = make(32768, 1)
    vx, vy = make(1200, 2)
    x, y = x[rank::world], y[rank::world]
    gen = torch.Generator().manual_seed(60 + rank)
    for step in range(args.steps):
        ix = torch.randint(0, len(x), (args.batch,), generator=gen)
        logits, aux = net(x[ix])
        loss = F.cross_entropy(logits, y[ix]) + args.aux * aux
        opt.zero_grad(set_to_none=False)
        loss.backward()
        for p in net.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        reduce_gradients(net)
        norm = clip(net, 1.0)
        opt.step()
        if step % 100 == 99:
            with torch.no_grad():
                hit = (net(vx[rank::world])[0].argmax(1) == vy[rank::world]).sum().float()
            dist.all_reduce(hit)
            if rank == 0:
                print(f"step {step + 1} loss {loss.item():.4f} norm {norm:.2f} acc {hit.item() / len(vy):.3f}", flush=True)
    torch.save(net.state_dict(), f"moe_part{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
