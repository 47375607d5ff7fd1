"""Masked reconstruction pre-training of a wide MLP-Mixer with gradient accumulation."""
import argparse
import contextlib
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclass
class Recipe:
    tokens: int = 8
    channels: int = 320
    depth: int = 4
    samples: int = 640
    micro_batch: int = 4
    accumulate: int = 8
    epochs: int = 1
    lr: float = 1.5e-3
    clip: float = 1.0
    mask_ratio: float = 0.4
    seed: int = 41


class Fields(Dataset):
    """Smooth random fields, one row per sample; masks are drawn per sample and epoch."""

    def __init__(self, recipe):
        g = torch.Generator().manual_seed(recipe.seed)
        basis = torch.randn(12, recipe.tokens, recipe.channels, generator=g) / 3.5
        coefficients = torch.randn(recipe.samples, 12, generator=g)
        self.x = torch.einsum("nk,ktc->ntc", coefficients, basis)
        self.ratio = recipe.mask_ratio
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(1_000_003 * self.epoch + i)
        mask = torch.rand(self.x.size(1), generator=g) < self.ratio
        mask[int(torch.randint(0, len(mask), (1,), generator=g))] = True
        return self.x[i], mask


class MixerBlock(nn.Module):
    def __init__(self, tokens, channels):
        super().__init__()
        self.norm_t = nn.LayerNorm(channels)
        self.token_mix = nn.Sequential(nn.Linear(tokens, 4 * tokens), nn.GELU(), nn.Linear(4 * tokens, tokens))
        self.norm_c = nn.LayerNorm(channels)
        self.channel_mix = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(),
                                         nn.Linear(4 * channels, channels))

    def forward(self, x):
        x = x + self.token_mix(self.norm_t(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel_mix(self.norm_c(x))


class MaskedMixer(nn.Module):
    def __init__(self, recipe):
        super().__init__()
        self.hole = nn.Parameter(torch.zeros(recipe.channels))
        self.blocks = nn.Sequential(*[MixerBlock(recipe.tokens, recipe.channels) for _ in range(recipe.depth)])
        self.norm = nn.LayerNorm(recipe.channels)
        self.decode = nn.Linear(recipe.channels, recipe.channels)

    def forward(self, x, mask):
        shown = torch.where(mask.unsqueeze(-1), self.hole.expand_as(x), x)
        return self.decode(self.norm(self.blocks(shown)))


def masked_error(prediction, target, mask):
    error = (prediction - target).pow(2).mean(-1)
    return ((error * mask).sum(1) / mask.sum(1)).mean()


class Pretrainer:
    def __init__(self, recipe):
        self.recipe = recipe
        self.rank = dist.get_rank()
        torch.manual_seed(recipe.seed)
        self.model = DDP(MaskedMixer(recipe), gradient_as_bucket_view=True)
        self.data = Fields(recipe)
        self.sampler = DistributedSampler(self.data, shuffle=True, seed=recipe.seed)
        self.loader = DataLoader(self.data, batch_size=recipe.micro_batch, sampler=self.sampler, drop_last=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=recipe.lr, weight_decay=0.05)
        self.updates = recipe.epochs * (len(self.loader) // recipe.accumulate)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, recipe.lr, total_steps=self.updates)

    def micro_step(self, x, mask, boundary):
        with contextlib.nullcontext() if boundary else self.model.no_sync():
            loss = masked_error(self.model(x, mask), x, mask)
            (loss / self.recipe.accumulate).backward()
        return loss.detach()

    def apply_update(self):
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        self.schedule.step()
        return norm

    def train(self):
        done = 0
        for epoch in range(self.recipe.epochs):
            self.sampler.set_epoch(epoch)
            self.data.set_epoch(epoch)
            window, start = torch.zeros(()), time.perf_counter()
            for i, (x, mask) in enumerate(self.loader):
                boundary = (i + 1) % self.recipe.accumulate == 0
                window += self.micro_step(x, mask, boundary)
                if not boundary:
                    continue
                norm = self.apply_update()
                done += 1
                if done % 4 == 0:
                    self.report(done, window / self.recipe.accumulate, norm, start)
                window.zero_()

    def report(self, done, loss, norm, start):
        value = loss.clone()
        dist.all_reduce(value)
        if self.rank == 0:
            rate = done * self.recipe.accumulate / (time.perf_counter() - start)
            print(f"update {done}/{self.updates} loss {value.item() / dist.get_world_size():.4f} "
                  f"norm {norm.item():.3f} {rate:.1f} micro-batches/s", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--accumulate", type=int, default=Recipe.accumulate)
    ap.add_argument("--epochs", type=int, default=Recipe.epochs)
    ns = ap.parse_args()
    dist.init_process_group("gloo")
    Pretrainer(Recipe(accumulate=ns.accumulate, epochs=ns.epochs)).train()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
