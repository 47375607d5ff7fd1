import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

from lora import LoRANetwork


class Mixer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.to_out = nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        x = x + self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.norm2(x))


class Denoiser(nn.Module):
    """Stands in for the frozen pretrained model."""

    def __init__(self, dim=32, heads=4, depth=2):
        super().__init__()
        self.inp = nn.Linear(8, dim)
        self.blocks = nn.ModuleList(Mixer(dim, heads) for _ in range(depth))
        self.out = nn.Linear(dim, 8)

    def forward(self, noisy, level):
        h = self.inp(noisy) + level[:, None, None]
        for b in self.blocks:
            h = b(h)
        return self.out(h)


def styles(args):
    g = torch.Generator().manual_seed(args.seed)
    basis = torch.randn(3, 6, 8, generator=g)
    w = torch.rand(args.images, 3, generator=g)
    return TensorDataset(torch.einsum("nk,ktd->ntd", w, basis) + 0.05 * torch.randn(args.images, 6, 8, generator=g))


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--images", type=int, default=320)
    p.add_argument("--train_batch_size", type=int, default=8)
    p.add_argument("--max_train_steps", type=int, default=60)
    p.add_argument("--learning_rate", type=float, default=1e-2)
    p.add_argument("--network_dim", type=int, default=4)
    p.add_argument("--network_alpha", type=float, default=4.0)
    p.add_argument("--max_grad_norm", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=33)
    p.add_argument("--output_dir", default="out_blanc")
    return p.parse_args()


class NetworkTrainer:
    def __init__(self, args):
        self.args = args
        self.accelerator = Accelerator(cpu=True)
        torch.set_num_threads(1)
        set_seed(args.seed)

    def load(self):
        self.base = Denoiser().requires_grad_(False)
        self.network = LoRANetwork(self.base, ("to_q", "to_k", "to_v", "to_out"),
                                   self.args.network_dim, self.args.network_alpha)
        self.network.apply_to()
        self.loader = DataLoader(styles(self.args), batch_size=self.args.train_batch_size, shuffle=True, drop_last=True)
        self.optimizer = torch.optim.AdamW(self.network.param_groups(self.args.learning_rate))
        self.network, self.optimizer, self.loader = self.accelerator.prepare(
            self.network, self.optimizer, self.loader)
        self.params = list(self.network.parameters())

    def loss(self, x, rng):
        noise = torch.randn(x.shape, generator=rng)
        level = torch.rand(len(x), generator=rng)
        noisy = (1 - level)[:, None, None] * x + level[:, None, None] * noise
        return F.mse_loss(self.base(noisy, level), noise - x)

    def train(self):
        rng = torch.Generator().manual_seed(self.args.seed * 100 + self.accelerator.process_index)
        step, epoch, ema = 0, 0, None
        self.network.train()
        while step < self.args.max_train_steps:
            for (x,) in self.loader:
                loss = self.loss(x, rng)
                self.accelerator.backward(loss)
                if self.args.max_grad_norm:
                    self.accelerator.clip_grad_norm_(self.params, self.args.max_grad_norm)
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
                mean = self.accelerator.reduce(loss.detach(), reduction="mean").item()
                ema = mean if ema is None else 0.9 * ema + 0.1 * mean
                step += 1
                if step % 10 == 0:
                    self.accelerator.print(f"epoch {epoch} step {step} loss {ema:.4f}", flush=True)
                if step >= self.args.max_train_steps:
                    break
            epoch += 1

    def save(self):
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            os.makedirs(self.args.output_dir, exist_ok=True)
            torch.save(self.accelerator.unwrap_model(self.network).state_dict(),
                       os.path.join(self.args.output_dir, "lora.pt"))
        self.accelerator.end_training()


if __name__ == "__main__":
    trainer = NetworkTrainer(parse())
    trainer.load()
    trainer.train()
    trainer.save()
