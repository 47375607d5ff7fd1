"""Trains a bfloat16 variational autoencoder with an optimizer that rounds its updates at random."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def round_at_random(value, generator):
    """float32 to bfloat16, up or down with the chances that make it right on average."""
    bits = value.view(torch.int32)
    noise = torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32, generator=generator)
    return ((bits + noise) & -65536).view(torch.float32).to(torch.bfloat16)


class RoundedAdam(torch.optim.Optimizer):
    """Adam with float32 moments for bfloat16 weights. All ranks draw the same rounding noise."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), eps=1e-8, seed=0):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))
        self.generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["t"] = 0
                    st["m"] = torch.zeros_like(p, dtype=torch.float32)
                    st["v"] = torch.zeros_like(p, dtype=torch.float32)
                st["t"] += 1
                grad = p.grad.float()
                st["m"].lerp_(grad, 1 - b1)
                st["v"].lerp_(grad * grad, 1 - b2)
                m = st["m"] / (1 - b1 ** st["t"])
                v = st["v"] / (1 - b2 ** st["t"])
                new = p.float() - group["lr"] * m / (v.sqrt() + group["eps"])
                p.copy_(round_at_random(new, self.generator))


class VAE(nn.Module):
    def __init__(self, dim=144, hidden=160, latent=8):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(dim, hidden), nn.LayerNorm(hidden), nn.SiLU(), nn.Linear(hidden, 2 * latent))
        self.dec = nn.Sequential(nn.Linear(latent, hidden), nn.LayerNorm(hidden), nn.SiLU(), nn.Linear(hidden, dim))

    def forward(self, x, eps):
        mu, logvar = self.enc(x).chunk(2, 1)
        z = mu + eps.to(mu.dtype) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


def blobs(n, g, size=12):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cy, cx = torch.rand(2, n, 1, 1, generator=g) * (size - 1)
    r = 1 + 2 * torch.rand(n, 1, 1, generator=g)
    return torch.exp(-((yy - cy) ** 2 + (xx - cx) ** 2) / (2 * r * r)).flatten(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=160)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(8)
    model = VAE().to(torch.bfloat16)
    ddp = DDP(model)
    opt = RoundedAdam(model.parameters(), lr=args.lr, seed=123)
    g = torch.Generator().manual_seed(rank + 1)
    for step in range(1, args.steps + 1):
        x = blobs(args.batch, g)
        out, mu, logvar = ddp(x.to(torch.bfloat16), torch.randn(args.batch, 8, generator=g))
        rec = F.mse_loss(out.float(), x, reduction="none").sum(1).mean()
        mu, logvar = mu.float(), logvar.float()
        kl = -0.5 * (1 + logvar - mu ** 2 - logvar.exp()).sum(1).mean()
        loss = rec + 0.02 * kl
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            s = torch.stack([rec.detach(), kl.detach()])
            dist.all_reduce(s)
            if rank == 0:
                print(f"step {step} rec {s[0] / world:.3f} kl {s[1] / world:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
