"""k-fold cross validation of a tabular classifier: every process owns whole folds and trains them alone."""
import argparse
import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, Subset, TensorDataset

log = logging.getLogger("cv")


@dataclass
class Settings:
    folds: int = 5
    epochs: int = 6
    batch_size: int = 32
    width: int = 24
    lr: float = 0.02
    weight_decay: float = 1e-3
    patience: int = 2
    seed: int = 2024


@dataclass
class FoldResult:
    fold: int
    accuracy: float
    epochs: int
    n_val: int


def load_table(seed, n=400, d=12):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g)
    w = torch.randn(d, 3, generator=g)
    y = (x @ w + 0.5 * torch.randn(n, 3, generator=g)).argmax(1)
    return TensorDataset(x, y)


def fold_indices(n, k, seed):
    perm = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    parts = [perm[i::k] for i in range(k)]
    for i in range(k):
        val = parts[i]
        train = [j for p in range(k) if p != i for j in parts[p]]
        yield i, train, val


class MLP(nn.Module):
    def __init__(self, d, width, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, width), nn.BatchNorm1d(width), nn.ReLU(),
                                  nn.Dropout(0.1), nn.Linear(width, width), nn.ReLU())
        self.out = nn.Linear(width, classes)

    def forward(self, x):
        return self.out(self.body(x))


class FoldTrainer:
    def __init__(self, cfg: Settings, data, fold, train_idx, val_idx):
        self.cfg, self.fold = cfg, fold
        torch.manual_seed(cfg.seed * 100 + fold)
        gen = torch.Generator().manual_seed(cfg.seed + fold)
        self.train_loader = DataLoader(data, cfg.batch_size, drop_last=True,
                                       sampler=SubsetRandomSampler(train_idx, generator=gen))
        self.val_loader = DataLoader(Subset(data, val_idx), 64)
        self.n_val = len(val_idx)
        self.model = MLP(data.tensors[0].shape[1], cfg.width, 3)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, cfg.epochs)

    def train_epoch(self):
        self.model.train()
        for x, y in self.train_loader:
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
        self.sched.step()

    @torch.no_grad()
    def accuracy(self):
        self.model.eval()
        hits = sum((self.model(x).argmax(1) == y).sum().item() for x, y in self.val_loader)
        return hits / self.n_val

    def run(self):
        best, bad, epoch = 0.0, 0, 0
        while epoch < self.cfg.epochs and bad < self.cfg.patience:
            self.train_epoch()
            acc = self.accuracy()
            epoch += 1
            if acc > best:
                best, bad = acc, 0
            else:
                bad += 1
        return FoldResult(self.fold, best, epoch, self.n_val)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folds", type=int, default=Settings.folds)
    parser.add_argument("--epochs", type=int, default=Settings.epochs)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    cfg = Settings(folds=args.folds, epochs=args.epochs)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    data = load_table(cfg.seed)
    mine = []
    for fold, train_idx, val_idx in fold_indices(len(data), cfg.folds, cfg.seed):
        if fold % world != rank:
            continue
        result = FoldTrainer(cfg, data, fold, train_idx, val_idx).run()
        log.info("rank %d fold %d accuracy %.3f after %d epochs", rank, fold, result.accuracy, result.epochs)
        mine.append(asdict(result))

    collected = [None] * world if rank == 0 else None
    dist.gather_object(mine, collected, dst=0)
    if rank == 0:
        rows = sorted((r for part in collected for r in part), key=lambda r: r["fold"])
        assert [r["fold"] for r in rows] == list(range(cfg.folds))
        acc = torch.tensor([r["accuracy"] for r in rows])
        out = Path("runs") / Path(__file__).stem
        out.mkdir(parents=True, exist_ok=True)
        (out / "folds.json").write_text(json.dumps(rows, indent=1))
        log.info("mean %.3f std %.3f over %d folds", acc.mean(), acc.std(), len(rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
