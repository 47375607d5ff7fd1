import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from roles import Roles, publish, report

ROUNDS, STEPS, BATCH = 4, 6, 32


def net():
    return nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 3))


def target(x):
    return (x[:, :4].sum(1) > 0).long() + (x[:, 4:8].sum(1) > 1).long()


class Stream:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def batch(self, n=BATCH):
        x = torch.randn(n, 12, generator=self.g)
        return x, target(x)


def train(roles):
    model = DDP(net(), process_group=roles.train_group)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    stream = Stream(10 + roles.rank)
    for r in range(ROUNDS):
        for _ in range(STEPS):
            x, y = stream.batch()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        publish(model.module, roles)
        score = report(0.0, roles)
        if roles.rank == 0:
            print(f"round {r} loss {loss.item():.4f} judged {score:.3f}", flush=True)


@torch.no_grad()
def judge(roles):
    model = net()
    held_out = Stream(999).batch(512)
    for _ in range(ROUNDS):
        publish(model, roles)
        report((model(held_out[0]).argmax(1) == held_out[1]).float().mean().item(), roles)


def main():
    dist.init_process_group("gloo")
    roles = Roles()
    torch.manual_seed(7)
    judge(roles) if roles.is_judge else train(roles)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
