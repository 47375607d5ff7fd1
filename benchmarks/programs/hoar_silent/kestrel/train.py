"""Variational autoencoder on synthetic mixtures, data parallel."""
import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from vae import VAE


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--beta", type=float, default=0.5)
    p.add_argument("--seed", type=int, default=7)
    return p.parse_args()


def build_data(seed, n=1536, dim=64, modes=6):
    g = torch.Generator().manual_seed(seed)
    centers = torch.randn(modes, dim, generator=g)
    which = torch.randint(0, modes, (n,), generator=g)
    return TensorDataset(centers[which] + 0.2 * torch.randn(n, dim, generator=g))


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        torch.manual_seed(args.seed)
        self.model = DDP(VAE())
        self.net = self.model.module
        # from here on each replica draws its own latent noise
        torch.manual_seed(args.seed * 1000 + self.rank)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        data = build_data(args.seed)
        self.sampler = DistributedSampler(data, shuffle=True, seed=args.seed)
        self.loader = DataLoader(data, batch_size=args.batch_size, sampler=self.sampler, drop_last=True)

    def beta(self, epoch):
        return self.args.beta * min(1.0, (epoch + 1) / 3)

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.model.train()
        total = torch.zeros(3)
        for (x,) in self.loader:
            out = self.model(x, self.beta(epoch))
            self.opt.zero_grad(set_to_none=True)
            out["loss"].backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.opt.step()
            total += torch.tensor([out["loss"].item(), out["rec"].item(), out["kl"].item()])
        total /= len(self.loader)
        dist.all_reduce(total)
        return total / dist.get_world_size()

    def fit(self):
        for epoch in range(self.args.epochs):
            loss, rec, kl = self.train_epoch(epoch).tolist()
            if self.rank == 0:
                print(f"epoch {epoch} loss {loss:.3f} rec {rec:.3f} kl {kl:.3f}", flush=True)
        if self.rank == 0:
            os.makedirs("out", exist_ok=True)
            torch.save(self.net.state_dict(), "out/vae.pt")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    trainer = Trainer(get_args())
    trainer.fit()
    dist.barrier()
    dist.destroy_process_group()
