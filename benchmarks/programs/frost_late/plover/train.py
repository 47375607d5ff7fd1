import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from taps import FeatureTap, History, MomentLog


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.low = nn.Sequential(nn.Linear(20, 128), nn.ReLU())
        self.mid = nn.Sequential(nn.Linear(128, 128), nn.ReLU())
        self.top = nn.Linear(128, 5)

    def forward(self, x):
        return self.top(self.mid(self.low(x)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=200)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Encoder()
    tap, history, log = FeatureTap(net.mid), History(net.low), MomentLog(net.top)
    ddp = DDP(net)
    opt = torch.optim.SGD(ddp.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(80 + rank)
    for step in range(a.steps):
        x = torch.randn(128, 20, generator=gen)
        y = x[:, :5].argmax(1)
        opt.zero_grad()
        logits = ddp(x)
        sparse = sum(f.mean() for f in tap.take())
        loss = nn.functional.cross_entropy(logits, y) + 0.01 * sparse
        loss.backward()
        opt.step()
        if step % 50 == 49 and rank == 0:
            print(f"step {step} loss {loss.item():.4f} spread {history.spread():.4f} kept {len(history.window)}", flush=True)
    print(f"rank {rank} logits scale {log.means[0]:.4f} -> {log.means[-1]:.4f} ({len(log.means)})", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
