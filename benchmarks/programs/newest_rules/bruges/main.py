import time

import torch
import torch.distributed as dist
import torch.nn as nn

from trainer import Trainer


class Replicated:
    def __init__(self, module):
        self.module = module
        for p in module.parameters():
            dist.broadcast(p.data, src=0)

    def reduce(self):
        world = dist.get_world_size()
        grads = [p.grad for p in self.module.parameters()]
        flat = torch.cat([g.reshape(-1) for g in grads])
        dist.all_reduce(flat)
        flat /= world
        for g, part in zip(grads, flat.split([g.numel() for g in grads])):
            g.copy_(part.view_as(g))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(9)
    net = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 5))
    model = Replicated(net)
    trainer = Trainer(model, torch.optim.SGD(net.parameters(), lr=0.05), weight=0.1, every=4)
    truth = torch.randn(32, 5)
    gen = torch.Generator().manual_seed(70 + rank)
    torch.manual_seed(80 + rank)
    for step in range(60):
        x = torch.randn(128, 32, generator=gen)
        trainer.add(x, (x @ truth).argmax(dim=1))
        if rank == 0 and step % 20 == 19:
            print(f"step {step} loss {trainer.mean():.4f} updates {len(trainer.curve)}", flush=True)
    dist.barrier()
    time.sleep(0.3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
