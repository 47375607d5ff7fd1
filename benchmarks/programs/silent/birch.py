import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

Z = 6


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 32), nn.LeakyReLU(0.2), nn.Linear(32, o))


class GANTrainer:
    def __init__(self):
        torch.manual_seed(3)
        self.gen = DDP(mlp(Z, 2))
        self.disc = DDP(mlp(2, 1))
        self.opt_g = torch.optim.Adam(self.gen.parameters(), lr=2e-3, betas=(0.5, 0.9))
        self.opt_d = torch.optim.Adam(self.disc.parameters(), lr=2e-3, betas=(0.5, 0.9))
        t = torch.rand(256, generator=torch.Generator().manual_seed(0)) * 6.28
        data = TensorDataset(torch.stack([t.cos(), t.sin()], 1))
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=8, sampler=self.sampler)
        torch.manual_seed(100 + dist.get_rank())

    def d_step(self, real):
        with torch.no_grad():
            fake = self.gen(torch.randn(len(real), Z))
        logits = self.disc(torch.cat([real, fake]))
        labels = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
        loss = F.binary_cross_entropy_with_logits(logits, labels)
        self.opt_d.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_d.step()
        return loss.detach()

    def g_step(self, n):
        for p in self.disc.parameters():
            p.requires_grad_(False)
        out = self.disc.module(self.gen(torch.randn(n, Z)))
        loss = F.binary_cross_entropy_with_logits(out, torch.ones(n, 1))
        self.opt_g.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_g.step()
        for p in self.disc.parameters():
            p.requires_grad_(True)
        return loss.detach()

    def run(self, epochs=3):
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            for i, (real,) in enumerate(self.loader):
                d = self.d_step(real)
                if i % 2 == 1:
                    g = self.g_step(len(real))
            if dist.get_rank() == 0:
                print(f"epoch {epoch} d {d.item():.3f} g {g.item():.3f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    GANTrainer().run()
    dist.destroy_process_group()
