import random

import torch
import torch.distributed as dist


class Member:
    """One network with its own hyper-parameters; lives on one process."""

    def __init__(self, model, lr, weight_decay, seed):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=weight_decay)
        self.rng = random.Random(seed)

    @property
    def hparams(self):
        g = self.optimizer.param_groups[0]
        return g["lr"], g["weight_decay"]

    def set_hparams(self, lr, weight_decay):
        self.optimizer.param_groups[0].update(lr=lr, weight_decay=weight_decay)

    def pack(self):
        parts = [p.detach().reshape(-1) for p in self.model.parameters()]
        parts += [self.optimizer.state[p]["momentum_buffer"].reshape(-1) for p in self.model.parameters()]
        return torch.cat(parts + [torch.tensor(self.hparams)])

    @torch.no_grad()
    def unpack(self, flat):
        offset = 0
        targets = list(self.model.parameters())
        targets += [self.optimizer.state[p]["momentum_buffer"] for p in self.model.parameters()]
        for t in targets:
            t.copy_(flat[offset:offset + t.numel()].view_as(t))
            offset += t.numel()
        self.set_hparams(flat[-2].item(), flat[-1].item())

    def explore(self):
        lr, wd = self.hparams
        self.set_hparams(lr * self.rng.choice([0.7, 1.4]), wd * self.rng.choice([0.5, 2.0]))


def exploit(member, score, swaps=1):
    """The worst members take over weights, momentum and settings of the best ones."""
    rank, world = dist.get_rank(), dist.get_world_size()
    scores = [torch.empty(1) for _ in range(world)]
    dist.all_gather(scores, torch.tensor([score]))
    order = sorted(range(world), key=lambda r: scores[r].item(), reverse=True)
    pairs = list(zip(order[:swaps], reversed(order[-swaps:])))
    for best, worst in pairs:
        if rank == best:
            dist.send(member.pack(), worst)
        elif rank == worst:
            buf = torch.empty_like(member.pack())
            dist.recv(buf, best)
            member.unpack(buf)
            member.explore()
    return [s.item() for s in scores], pairs
