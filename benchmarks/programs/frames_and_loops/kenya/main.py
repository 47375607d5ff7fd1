import argparse
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset


class NoisyImages(Dataset):
    """Smooth random fields; the model learns to predict the added noise."""

    def __init__(self, count, size, seed):
        g = torch.Generator().manual_seed(seed)
        low = torch.randn(count, 1, 4, 4, generator=g)
        self.images = F.interpolate(low, size=(size, size), mode="bicubic", align_corners=False)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return {"image": self.images[i]}


class NoiseNet(nn.Module):
    def __init__(self, width=20, levels=50):
        super().__init__()
        self.time = nn.Embedding(levels, width)
        self.inp = nn.Conv2d(1, width, 3, padding=1)
        self.mid = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norm = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(2))
        self.out = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x, t):
        h = self.inp(x) + self.time(t)[:, :, None, None]
        for conv, norm in zip(self.mid, self.norm):
            h = h + conv(F.silu(norm(h)))
        return self.out(F.silu(h))


class Schedule:
    def __init__(self, levels=50):
        self.levels = levels
        s = torch.linspace(0, 1, levels + 1)[1:]
        self.alpha = torch.cos(s * math.pi / 2 * 0.98).pow(2).clamp_min(1e-3)

    def add(self, x, noise, t):
        a = self.alpha[t][:, None, None, None]
        return a.sqrt() * x + (1 - a).sqrt() * noise


def cosine_with_warmup(optimizer, warmup, total):
    def factor(step):
        if step < warmup:
            return (step + 1) / max(1, warmup)
        progress = min(1.0, (step - warmup) / max(1, total - warmup))
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--train_batch_size", type=int, default=12)
    p.add_argument("--gradient_accumulation_steps", type=int, default=2)
    p.add_argument("--learning_rate", type=float, default=4e-3)
    p.add_argument("--warmup_ratio", type=float, default=0.1)
    p.add_argument("--images", type=int, default=480)
    p.add_argument("--size", type=int, default=12)
    p.add_argument("--max_grad_norm", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=21)
    p.add_argument("--output_dir", default="out_kenya")
    return p.parse_args()


def main():
    args = parse_args()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.gradient_accumulation_steps)
    torch.set_num_threads(1)
    set_seed(args.seed)
    model = NoiseNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    train = DataLoader(NoisyImages(args.images, args.size, args.seed), batch_size=args.train_batch_size, shuffle=True)
    held = DataLoader(NoisyImages(96, args.size, args.seed + 1), batch_size=args.train_batch_size)
    schedule = Schedule()

    model, optimizer, train, held = accelerator.prepare(model, optimizer, train, held)
    updates_per_epoch = math.ceil(len(train) / args.gradient_accumulation_steps)
    max_train_steps = args.epochs * updates_per_epoch
    scheduler = cosine_with_warmup(optimizer.optimizer, int(args.warmup_ratio * max_train_steps), max_train_steps)
    scheduler = accelerator.prepare(scheduler)
    accelerator.print(f"{accelerator.num_processes} processes, {max_train_steps} updates")

    noise_rng = torch.Generator().manual_seed(args.seed * 1000 + accelerator.process_index)
    done = 0
    for epoch in range(args.epochs):
        model.train()
        total, count = 0.0, 0
        for batch in train:
            with accelerator.accumulate(model):
                x = batch["image"]
                noise = torch.randn(x.shape, generator=noise_rng)
                t = torch.randint(0, schedule.levels, (len(x),), generator=noise_rng)
                loss = F.mse_loss(model(schedule.add(x, noise, t), t), noise)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                    done += 1
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            total += loss.item()
            count += 1
        model.eval()
        val = []
        with torch.no_grad():
            g = torch.Generator().manual_seed(77)
            for batch in held:
                x = batch["image"]
                noise = torch.randn(x.shape, generator=g)
                t = torch.randint(0, schedule.levels, (len(x),), generator=g)
                err = (model(schedule.add(x, noise, t), t) - noise).pow(2).mean(dim=(1, 2, 3))
                val.append(accelerator.gather_for_metrics(err))
        mean = accelerator.reduce(torch.tensor(total / count), reduction="mean").item()
        accelerator.print(f"epoch {epoch} updates {done} loss {mean:.4f} val {torch.cat(val).mean():.4f} "
                          f"lr {scheduler.get_last_lr()[0]:.2e}", flush=True)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        os.makedirs(args.output_dir, exist_ok=True)
        torch.save(accelerator.unwrap_model(model).state_dict(), os.path.join(args.output_dir, "noise_net.pt"))
    accelerator.end_training()


if __name__ == "__main__":
    main()
