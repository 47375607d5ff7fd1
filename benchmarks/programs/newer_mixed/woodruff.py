"""Domain-adversarial training: gradient reversal by hooks, half-precision gradients on the wire."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Compressor:
    """Sends bfloat16 and keeps what was lost for the next time, bucket by bucket."""

    def __init__(self, group=None):
        self.group = group or dist.group.WORLD
        self.left = {}
        self.calls = 0

    @staticmethod
    def hook(state, bucket):
        buf = bucket.buffer()
        key = bucket.index()
        old = state.left.get(key)
        if old is not None and old.shape == buf.shape:
            buf.add_(old)
        small = buf.to(torch.bfloat16)
        state.left[key] = buf - small.float()
        state.calls += 1
        wire = small.float().div_(state.group.size())
        fut = dist.all_reduce(wire, group=state.group, async_op=True).get_future()
        return fut.then(lambda f: f.value()[0])


class Adversarial(nn.Module):
    def __init__(self, strength):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(14, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.task = nn.Linear(16, 3)
        self.domain = nn.Linear(16, 2)
        self.strength = strength
        self.scale_seen = []
        self.first = self.features.register_forward_pre_hook(self.once)

    def once(self, module, inputs):
        self.scale_seen.append(inputs[0].std().item())
        self.first.remove()

    def forward(self, x):
        h = self.features(x)
        g = h * 1.0
        if g.requires_grad:
            g.register_hook(lambda grad: -self.strength * grad)
        return self.task(h), self.domain(g)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--strength", type=float, default=0.3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(13)
    net = DDP(Adversarial(args.strength), bucket_cap_mb=0.002)
    state = Compressor()
    net.register_comm_hook(state, Compressor.hook)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.8)
    gen = torch.Generator().manual_seed(130 + rank)
    for step in range(args.steps):
        dom = torch.randint(0, 2, (24,), generator=gen)
        x = torch.randn(24, 14, generator=gen) + 0.5 * dom[:, None]
        y = x[:, :3].argmax(1)
        task, domain = net(x)
        loss = F.cross_entropy(task, y) + F.cross_entropy(domain, dom)
        opt.zero_grad()
        loss.backward()
        if step == 0:
            state.left.clear()  # the bucket layout is settled only after the first pass
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} hook calls {state.calls}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
