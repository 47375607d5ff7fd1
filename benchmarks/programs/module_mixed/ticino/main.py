import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from monitors import LossMonitor, MonitorList, SpectrumMonitor

STEPS, BATCH, D = 20, 32, 320


class MLPMixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(24, D), nn.Linear(D, 10)
        self.hidden = nn.ModuleList(nn.Linear(D, D) for _ in range(3))

    def forward(self, x):
        h = self.inp(x)
        for layer in self.hidden:
            h = h + torch.relu(layer(h))
        return self.out(h)


def data(n=2000):
    g = torch.Generator().manual_seed(15)
    x = torch.randn(n, 24, generator=g)
    return TensorDataset(x, x[:, :10].argmax(1))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(27)
    model = DDP(MLPMixer())
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    monitors = MonitorList(LossMonitor(), SpectrumMonitor())
    ds = data()
    loader = DataLoader(ds, batch_size=BATCH, sampler=DistributedSampler(ds, seed=7), drop_last=True)
    for step, (x, y) in zip(range(STEPS), loader):
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        monitors(step, model.module, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
