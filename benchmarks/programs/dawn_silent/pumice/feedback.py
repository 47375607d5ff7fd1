"""Scaled-sign gradient exchange with error feedback: each worker keeps what its own message left out."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

STEPS, LR, SCALE_DECAY = 200, 0.3, 0.9


class Compressor:
    """Per-worker residual memory, one tensor for each parameter."""

    def __init__(self, params):
        self.params = list(params)
        self.memory = [torch.zeros_like(p) for p in self.params]
        self.momentum = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def exchange(self, lr):
        world = dist.get_world_size()
        for p, mem, mom in zip(self.params, self.memory, self.momentum):
            mom.mul_(SCALE_DECAY).add_(p.grad, alpha=1 - SCALE_DECAY)
            want = mem + lr * mom
            scale = want.abs().mean()
            sent = scale * want.sign()
            mem.copy_(want - sent)
            dist.all_reduce(sent)
            p.sub_(sent / world)


class EdgeNet(nn.Module):
    """Message passing over a fixed ring with chords."""

    def __init__(self, nodes=16, dim=24):
        super().__init__()
        adj = torch.zeros(nodes, nodes)
        for i in range(nodes):
            for j in (i - 1, i + 1, i + 5):
                adj[i, j % nodes] = 1.0
        self.register_buffer("adj", adj / adj.sum(1, keepdim=True))
        self.inp = nn.Linear(4, dim)
        self.msg = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, 2)

    def forward(self, x):
        h = torch.relu(self.inp(x))
        for layer in self.msg:
            h = h + torch.relu(layer(torch.cat([h, self.adj @ h], -1)))
        return self.out(h.mean(1))


def graphs(gen, n, nodes=16):
    x = torch.randn(n, nodes, 4, generator=gen)
    return x, ((x[..., 0].relu() - x[..., 1].relu() + 0.5 * x[..., 2]).sum(1) > 0).long()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(71)
    model = EdgeNet()
    comp = Compressor(model.parameters())
    gen = torch.Generator().manual_seed(300 + rank)
    for step in range(STEPS):
        x, y = graphs(gen, 64)
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        comp.exchange(LR * min(1.0, (step + 1) / 20))
        if step % 40 == 0 or step == STEPS - 1:
            stats = torch.stack([loss.detach(), sum(m.norm() for m in comp.memory)])
            dist.all_reduce(stats)
            if rank == 0:
                print(f"step {step} loss {stats[0] / world:.4f} residual {stats[1] / world:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
