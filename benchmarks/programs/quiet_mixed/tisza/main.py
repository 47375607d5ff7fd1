from dataclasses import dataclass

import torch
import torch.distributed as dist

from clusters import Clusters
from grads import finish_gradients
from layers import SparseNet


@dataclass
class Cfg:
    dim: int = 16
    width: int = 32
    classes: int = 6
    experts_per_rank: int = 2
    tokens: int = 96
    steps: int = 50
    lr: float = 3e-3
    aux: float = 0.02
    clip: float = 1.0


def main(cfg: Cfg):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    net = SparseNet(cfg, rank, world)
    optim = torch.optim.AdamW(net.parameters(), lr=cfg.lr)
    data = Clusters(cfg, seed=1000 + rank)
    for step in range(1, cfg.steps + 1):
        x, y = data.sample()
        logits, balance = net(x)
        ce = torch.nn.functional.cross_entropy(logits, y)
        optim.zero_grad()
        (ce + cfg.aux * balance).backward()
        norm = finish_gradients(net, cfg.clip)
        optim.step()
        if step % 10 == 0:
            ce = ce.detach()
            dist.all_reduce(ce)
            if rank == 0:
                print(f"step {step} ce {ce.item() / world:.4f} norm {norm:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Cfg())
