import torch
from torch import nn
import torch.nn.functional as F


class VAE(nn.Module):
    def __init__(self, dim=64, hidden=128, latent=8):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, 2 * latent))
        self.dec = nn.Sequential(nn.Linear(latent, hidden), nn.SiLU(), nn.Linear(hidden, dim))

    def encode(self, x):
        mu, logvar = self.enc(x).chunk(2, dim=-1)
        return mu, logvar.clamp(-8, 8)

    def elbo(self, x, beta):
        mu, logvar = self.encode(x)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        rec = F.mse_loss(self.dec(z), x, reduction="none").sum(-1).mean()
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(-1).mean()
        return {"loss": rec + beta * kl, "rec": rec.detach(), "kl": kl.detach()}

    def forward(self, x, beta=1.0):
        return self.elbo(x, beta)
