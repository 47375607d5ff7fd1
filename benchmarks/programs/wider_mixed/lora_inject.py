"""Low-rank adapters for a frozen denoiser: the adapters replace the forward of the linears they belong to."""
import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

from network import Denoiser, LoRANetwork


def style_images(n=256):
    g = torch.Generator().manual_seed(6)
    return TensorDataset(torch.randn(n, 12, generator=g) * 0.2 + torch.linspace(-1, 1, 12))


class Trainer:
    def __init__(self, args):
        self.args = args
        self.accelerator = Accelerator(cpu=True)
        set_seed(args.seed)
        self.unet = Denoiser().requires_grad_(False)
        self.network = LoRANetwork(self.unet)
        self.network.apply_to()
        self.opt = torch.optim.AdamW(self.network.parameters(), lr=args.lr)
        self.loader = DataLoader(style_images(), batch_size=16, shuffle=True)
        self.network, self.opt, self.loader = self.accelerator.prepare(self.network, self.opt, self.loader)
        set_seed(args.seed, device_specific=True)

    def loss(self, x):
        t = torch.rand(len(x), 1)
        noise = torch.randn_like(x)
        pred = self.unet(x * (1 - t) + noise * t, t)
        return (pred - noise).pow(2).mean()

    def train(self):
        for epoch in range(self.args.epochs):
            for (x,) in self.loader:
                loss = self.loss(x)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.network.parameters(), self.args.max_grad_norm)
                self.opt.step()
                self.opt.zero_grad(set_to_none=True)
            mean = self.accelerator.reduce(loss.detach(), "mean")
            self.accelerator.print(f"epoch {epoch} loss {mean.item():.4f}")
        self.accelerator.wait_for_everyone()
        self.accelerator.end_training()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--max-grad-norm", type=float, default=1.0)
    ap.add_argument("--seed", type=int, default=42)
    Trainer(ap.parse_args()).train()
