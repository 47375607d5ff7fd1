import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Patches(Dataset):
    def __init__(self, n=256):
        g = torch.Generator().manual_seed(5)
        self.x = torch.randn(n, 1, 8, 8, generator=g)
        self.y = (self.x[:, 0, :4].mean((1, 2)) > self.x[:, 0, 4:].mean((1, 2))).long()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(6 * 16, 2)

    def forward(self, x):
        return self.head(self.backbone(x))


class FinetuneRunner:
    unfreeze_epoch = 1

    def __init__(self):
        torch.manual_seed(21)
        net = Classifier()
        net.backbone.requires_grad_(False)
        self.optimizer = torch.optim.AdamW([
            {"params": net.head.parameters(), "lr": 1e-2},
            {"params": net.backbone.parameters(), "lr": 2e-3},
        ])
        self.model = DistributedDataParallel(net)
        data = Patches()
        self.sampler = DistributedSampler(data, seed=9)
        self.loader = DataLoader(data, batch_size=8, sampler=self.sampler)

    def on_epoch_start(self, epoch):
        self.sampler.set_epoch(epoch)
        if epoch == self.unfreeze_epoch:
            for p in self.model.module.backbone.parameters():
                p.requires_grad_(True)
            self.model = DistributedDataParallel(self.model.module)
            if dist.get_rank() == 0:
                print("backbone unfrozen", flush=True)

    def run_epoch(self, epoch):
        self.on_epoch_start(epoch)
        self.model.train()
        total = torch.zeros(())
        for x, y in self.loader:
            self.optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        return total.item() / (len(self.loader) * dist.get_world_size())


def main():
    dist.init_process_group(backend="gloo")
    runner = FinetuneRunner()
    for epoch in range(3):
        loss = runner.run_epoch(epoch)
        if dist.get_rank() == 0:
            print(f"[{epoch}] loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
