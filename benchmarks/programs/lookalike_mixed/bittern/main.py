import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from meters import StepReport, collect
from policy import Clipper


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(50, 24)
        self.mix = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 24))
        self.out = nn.Linear(24, 50)

    def forward(self, t):
        h = self.emb(t)
        return self.out((h + self.mix(h)).mean(1))


def data(n=576):
    g = torch.Generator().manual_seed(14)
    t = torch.randint(0, 50, (n, 6), generator=g)
    return TensorDataset(t, (t[:, 0] + t[:, 3]) % 50)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(2)
    model = DDP(Net())
    ds = data()
    loader = DataLoader(ds, batch_size=16, sampler=DistributedSampler(ds, seed=6), drop_last=True)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    clip = Clipper(limit=0.6)
    for epoch in range(4):
        loader.sampler.set_epoch(epoch)
        last = None
        for t, y in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(t), y)
            loss.backward()
            last = StepReport(*collect(loss.detach(), model.parameters(), len(y)))
            clip.apply(model.parameters(), last)
            opt.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} {last.describe()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
