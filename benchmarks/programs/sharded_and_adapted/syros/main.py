"""Multilingual intent classification: one evaluation file per language, files dealt out to ranks.

The best checkpoint is the one with the highest validation accuracy.
"""
import argparse
import copy
import os
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import ConcatDataset, DataLoader, Dataset, DistributedSampler

LANGUAGES = {"en": (1440, 640), "is": (220, 72), "mt": (140, 40)}


@dataclass
class Options:
    epochs: int = 6
    batch_size: int = 24
    lr: float = 3e-3
    dim: int = 48
    seed: int = 8
    out: str = "runs/syros"
    languages: list = field(default_factory=lambda: list(LANGUAGES))


class IntentFile(Dataset):
    """Bag-of-words vectors of one language; small languages are noisier."""

    def __init__(self, language, split, vocab=120, classes=6):
        size = LANGUAGES[language][0 if split == "train" else 1]
        tag = sum(map(ord, language))
        shared = torch.Generator().manual_seed(400)
        own = torch.Generator().manual_seed(tag)
        g = torch.Generator().manual_seed(tag * 7 + (split == "valid"))
        base = torch.randn(vocab, classes, generator=shared)
        drift = torch.randn(vocab, classes, generator=own)
        noise = {"en": 0.2, "is": 0.9, "mt": 1.3}[language]
        self.x = torch.poisson(torch.full((size, vocab), 0.3), generator=g)
        score = self.x @ (base + noise * drift)
        self.y = (score + noise * torch.randn(score.shape, generator=g)).argmax(-1)
        self.language = language

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class IntentNet(nn.Module):
    def __init__(self, vocab=120, dim=48, classes=6):
        super().__init__()
        self.project = nn.Linear(vocab, dim)
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(0.1)
        self.classify = nn.Linear(dim, classes)

    def forward(self, x):
        return self.classify(self.dropout(F.gelu(self.norm(self.project(x)))))


def distribute_files(languages, rank, world):
    return [name for i, name in enumerate(sorted(languages)) if i % world == rank]


class Evaluator:
    def __init__(self, opts):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        mine = distribute_files(opts.languages, self.rank, self.world)
        self.loaders = {name: DataLoader(IntentFile(name, "valid"), batch_size=64) for name in mine}

    @torch.no_grad()
    def __call__(self, model):
        model.eval()
        right, count, loss = 0, 0, 0.0
        for loader in self.loaders.values():
            for x, y in loader:
                logits = model(x)
                loss += F.cross_entropy(logits, y, reduction="sum").item()
                right += (logits.argmax(-1) == y).sum().item()
                count += len(y)
        model.train()
        return self.summarise(right, count, loss)

    def summarise(self, right, count, loss):
        report = torch.tensor([right / max(count, 1), loss / max(count, 1)], dtype=torch.float64)
        dist.all_reduce(report)
        report /= self.world
        return {"accuracy": report[0].item(), "loss": report[1].item()}


class Checkpointer:
    def __init__(self, folder):
        self.folder, self.best, self.state, self.epoch = folder, -1.0, None, None

    def offer(self, model, metrics, epoch):
        if metrics["accuracy"] > self.best:
            self.best, self.epoch = metrics["accuracy"], epoch
            self.state = copy.deepcopy(model.state_dict())
            return True
        return False

    def flush(self):
        os.makedirs(self.folder, exist_ok=True)
        torch.save({"epoch": self.epoch, "accuracy": self.best, "model": self.state},
                   os.path.join(self.folder, "best.pt"))


def train(opts):
    rank = dist.get_rank()
    torch.manual_seed(opts.seed)
    model = DDP(IntentNet(dim=opts.dim))
    torch.manual_seed(opts.seed + rank)
    data = ConcatDataset([IntentFile(name, "train") for name in opts.languages])
    sampler = DistributedSampler(data, shuffle=True, seed=opts.seed, drop_last=True)
    loader = DataLoader(data, batch_size=opts.batch_size, sampler=sampler, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=opts.lr, weight_decay=0.02)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, opts.epochs * len(loader))
    evaluate, keeper = Evaluator(opts), Checkpointer(opts.out)
    for epoch in range(opts.epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            loss = F.cross_entropy(model(x), y, label_smoothing=0.05)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item()
        metrics = evaluate(model.module)
        better = keeper.offer(model.module, metrics, epoch)
        if rank == 0:
            print(f"epoch {epoch} train {total / len(loader):.4f} valid {metrics['loss']:.4f} "
                  f"accuracy {metrics['accuracy']:.4f}{' *' if better else ''}", flush=True)
    if rank == 0:
        keeper.flush()
        print(f"kept epoch {keeper.epoch} with accuracy {keeper.best:.4f}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=Options.epochs)
    ap.add_argument("--lr", type=float, default=Options.lr)
    ap.add_argument("--out", default=Options.out)
    ns = ap.parse_args()
    dist.init_process_group("gloo")
    train(Options(epochs=ns.epochs, lr=ns.lr, out=ns.out))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
