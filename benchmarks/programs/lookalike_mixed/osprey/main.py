import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from lowrank import LowRank, fold
from restart import Restarter


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = LowRank(16, 48, 4)
        self.b = LowRank(48, 48, 4)
        self.head = nn.Linear(48, 6)

    def forward(self, x):
        return self.head(torch.relu(self.b(torch.relu(self.a(x)))))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(90)
    model = DDP(Net())
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.Adam(params, lr=5e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: max(0.05, 1 - s / 120))
    g = torch.Generator().manual_seed(7)
    x = torch.randn(768, 16, generator=g)
    ds = TensorDataset(x, x[:, :6].argmax(1))
    loader = DataLoader(ds, batch_size=24, sampler=DistributedSampler(ds, seed=17), drop_last=True)
    restarter = Restarter(model.module, every=32, seed=90)
    step = 0
    for epoch in range(6):
        loader.sampler.set_epoch(epoch)
        total = torch.zeros(())
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            sched.step()
            step += 1
            total += loss.detach()
            if restarter.due(step):
                fold(model.module)
                opt, sched = restarter.renew(params, sched, step)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {float(total) / len(loader):.4f} lr {sched.get_last_lr()[0]:.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
