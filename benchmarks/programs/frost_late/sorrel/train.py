import argparse
import resource

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from probes import ActivationProbe


def mlp(width, depth):
    layers = [nn.Linear(32, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 4))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=240)
    ap.add_argument("--width", type=int, default=256)
    ap.add_argument("--batch", type=int, default=192)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(4)
    teacher = torch.randn(32, 4)
    net = mlp(a.width, 3)
    probe = ActivationProbe(net, (nn.ReLU,))
    ddp = DDP(net)
    opt = torch.optim.SGD(ddp.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(50 + rank)
    for step in range(a.steps):
        x = torch.randn(a.batch, 32, generator=gen)
        y = (x @ teacher).argmax(1)
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        opt.step()
        if step % 40 == 0 and rank == 0:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(f"step {step} loss {loss.item():.4f} act {probe.summary()} rss {peak} MB", flush=True)
    probe.close()
    if rank == 0:
        print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "MB", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
