"""Transcribe toy tone sequences with a small transformer; can be continued with --resume."""
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

HERE = os.path.dirname(os.path.abspath(__file__))
TONES, FRAMES, BINS = 12, 16, 24


def tones(count, seed):
    gen = torch.Generator().manual_seed(seed)
    notes = torch.randint(0, TONES, (count, FRAMES), generator=gen)
    centres = torch.linspace(0, 1, TONES)[notes].unsqueeze(-1)
    grid = torch.linspace(0, 1, BINS)
    spectrum = torch.exp(-((grid - centres) * 14) ** 2)
    return TensorDataset(spectrum + 0.25 * torch.randn(spectrum.shape, generator=gen), notes)


class Transcriber(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.inp = nn.Linear(BINS, dim)
        self.pos = nn.Parameter(torch.zeros(1, FRAMES, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(dim, TONES)

    def forward(self, x):
        return self.out(self.body(self.inp(x) + self.pos))


def warmup_then_decay(warmup):
    def factor(step):
        step = step + 1
        return min(step / warmup, (warmup / step) ** 0.5)

    return factor


def save(path, model, optimizer, epoch, step):
    state = {
        "model": model.module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": epoch,
        "step": step,
    }
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--count", type=int, default=12000)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--dim", type=int, default=48)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=60)
    parser.add_argument("--checkpoint", default=os.path.join(HERE, "transcriber.pt"))
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    train, valid = tones(args.count, seed=1), tones(400, seed=2)
    sampler = DistributedSampler(train, seed=0)
    loader = DataLoader(train, args.batch, sampler=sampler)
    valid_loader = DataLoader(torch.utils.data.Subset(valid, range(rank, len(valid), world)), 50)

    model = DistributedDataParallel(Transcriber(args.dim))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = LambdaLR(optimizer, warmup_then_decay(args.warmup))
    first, step = 0, 0
    if args.resume:
        state = torch.load(args.checkpoint, map_location="cpu")
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, step = state["epoch"] + 1, state["step"]
        if rank == 0:
            print(f"continuing with epoch {first}, step {step}", flush=True)

    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        for spectrum, notes in loader:
            loss = nn.functional.cross_entropy(model(spectrum).flatten(0, 1), notes.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
        model.eval()
        counts = torch.zeros(2)
        with torch.no_grad():
            for spectrum, notes in valid_loader:
                counts[0] += (model.module(spectrum).argmax(-1) == notes).sum()
                counts[1] += notes.numel()
        model.train()
        dist.all_reduce(counts)
        if rank == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f} valid {(counts[0] / counts[1]).item():.4f}", flush=True)
            save(args.checkpoint, model, optimizer, epoch, step)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
