"""Population based training: one member on each rank, own learning rate, the weakest copies the strongest."""
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def task():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(700, 14, generator=g)
    y = (x @ torch.randn(14, 4, generator=g) + 0.4 * torch.randn(700, 4, generator=g)).argmax(1)
    return TensorDataset(x[:560], y[:560]), x[560:], y[560:]


class Member:
    def __init__(self, rank):
        self.rank = rank
        self.rnd = random.Random(rank)
        torch.manual_seed(100 + rank)                    # members start apart from each other
        self.net = nn.Sequential(nn.Linear(14, 40), nn.Tanh(), nn.Linear(40, 4))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=10 ** self.rnd.uniform(-3, -0.5), momentum=0.9)

    @property
    def lr(self):
        return self.opt.param_groups[0]["lr"]

    @torch.no_grad()
    def score(self, x, y):
        return (self.net(x).argmax(1) == y).float().mean()

    def export(self):
        return {"net": self.net.state_dict(), "opt": self.opt.state_dict()}

    def adopt(self, state):
        self.net.load_state_dict(state["net"])
        self.opt.load_state_dict(state["opt"])
        for group in self.opt.param_groups:
            group["lr"] *= self.rnd.choice([0.8, 1.25])


def exploit(member, score):
    scores = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(scores, score)
    ranking = torch.stack(scores)
    best, worst = int(ranking.argmax()), int(ranking.argmin())
    if best == worst:
        return ranking
    parcel = [member.export() if member.rank == best else None]
    dist.broadcast_object_list(parcel, src=best)
    if member.rank == worst:
        member.adopt(parcel[0])
    return ranking


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    train, xv, yv = task()
    member = Member(rank)
    # every member trains on the whole set, in an order of its own
    loader = DataLoader(train, batch_size=20, shuffle=True, generator=torch.Generator().manual_seed(rank))
    for epoch in range(5):
        for x, y in loader:
            member.opt.zero_grad()
            F.cross_entropy(member.net(x), y).backward()
            member.opt.step()
        ranking = exploit(member, member.score(xv, yv))
        if rank == 0:
            print(f"epoch {epoch}: " + "  ".join(f"{s:.3f}" for s in ranking.tolist()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
