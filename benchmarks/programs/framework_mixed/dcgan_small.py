import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

Z = 16


def generator_net():
    return nn.Sequential(
        nn.Linear(Z, 64 * 4 * 4), nn.Unflatten(1, (64, 4, 4)), nn.ReLU(),
        nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Tanh(),
    )


def critic_net():
    return nn.Sequential(
        nn.Conv2d(1, 32, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(32, 64, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(64 * 16, 1),
    )


def rings(n=384):
    g = torch.Generator().manual_seed(0)
    r = 3 + 3 * torch.rand(n, 1, 1, generator=g)
    yy, xx = torch.meshgrid(torch.arange(16.0) - 7.5, torch.arange(16.0) - 7.5, indexing="ij")
    img = torch.exp(-((yy**2 + xx**2).sqrt() - r) ** 2) * 2 - 1
    return TensorDataset(img.unsqueeze(1))


def d_loss(real_logit, fake_logit):
    return F.softplus(-real_logit).mean() + F.softplus(fake_logit).mean()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    G, D = DDP(generator_net()), DDP(critic_net())
    g_opt = torch.optim.Adam(G.parameters(), 2e-4, betas=(0.5, 0.999))
    d_opt = torch.optim.Adam(D.parameters(), 2e-4, betas=(0.5, 0.999))
    ds = rings()
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, 16, sampler=sampler, drop_last=True)
    torch.manual_seed(77 + rank)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for i, (real,) in enumerate(loader):
            with torch.no_grad():
                fake = G.module(torch.randn(len(real), Z))
            logit = D(torch.cat([real, fake]))
            loss_d = d_loss(*logit.chunk(2))
            d_opt.zero_grad()
            loss_d.backward()
            d_opt.step()

            if i % 2 == 0:
                g_opt.zero_grad()
                loss_g = F.softplus(-D.module(G(torch.randn(len(real), Z)))).mean()
                loss_g.backward()
                g_opt.step()
        if rank == 0:
            print(f"epoch {epoch} d {loss_d.item():.3f} g {loss_g.item():.3f}", flush=True)
    if rank == 0:
        torch.save({"G": G.module.state_dict(), "D": D.module.state_dict()}, "gan.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
