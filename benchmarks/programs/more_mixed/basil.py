"""Expert-parallel mixture of experts: shared trunk averaged, experts stay local."""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, recv):
        ctx.send, ctx.recv = send, recv
        out = x.new_empty(sum(recv), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, g):
        out = g.new_empty(sum(ctx.send), g.shape[1])
        dist.all_to_all_single(out, g.contiguous(), ctx.send, ctx.recv)
        return out, None, None


class MoE(nn.Module):
    """One expert per rank, top-1 routing."""

    def __init__(self, d, rank, world):
        super().__init__()
        self.router = nn.Linear(d, world)
        gen_state = torch.get_rng_state()
        torch.manual_seed(9000 + rank)
        self.expert = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        torch.set_rng_state(gen_state)
        self.world = world

    def forward(self, x):
        probs = self.router(x).softmax(-1)
        gate, dest = probs.max(-1)
        order = dest.argsort(stable=True)
        send = torch.bincount(dest, minlength=self.world)
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send)
        send, recv = send.tolist(), recv.tolist()
        inbox = AllToAll.apply(x[order], send, recv)
        back = AllToAll.apply(self.expert(inbox), recv, send)
        out = torch.empty_like(back).index_copy(0, order, back)
        load = probs.mean(0) @ F.one_hot(dest, self.world).float().mean(0) * self.world
        return x + gate[:, None] * out, load


class Net(nn.Module):
    def __init__(self, rank, world, d=24):
        super().__init__()
        self.inp = nn.Linear(10, d)
        self.moe = MoE(d, rank, world)
        self.out = nn.Linear(d, 4)

    def forward(self, x):
        h, load = self.moe(F.relu(self.inp(x)))
        return self.out(h), load

    def shared(self):
        return [p for n, p in self.named_parameters() if ".expert." not in n]

    def local(self):
        return [p for n, p in self.named_parameters() if ".expert." in n]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--bs", type=int, default=64)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    net = Net(rank, world)
    opt = torch.optim.AdamW(net.parameters(), lr=4e-3)
    gen = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        x = torch.randn(args.bs, 10, generator=gen)
        y = (x[:, 0] > 0).long() * 2 + (x[:, 1] * x[:, 2] > 0).long()
        logits, load = net(x)
        loss = F.cross_entropy(logits, y) + 0.01 * load
        opt.zero_grad(set_to_none=False)
        loss.backward()
        for p in net.shared():
            dist.all_reduce(p.grad)
            p.grad /= world
        for p in net.local():
            if p.grad is not None:
                p.grad /= world
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
