"""Intent classifier on token sequences, data parallel on CPU hosts."""
import argparse
import logging
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("intent")


@dataclass
class Config:
    vocab: int = 120
    seq_len: int = 16
    width: int = 48
    classes: int = 6
    dropout: float = 0.2
    train_size: int = 1536
    val_size: int = 256
    batch_size: int = 32
    epochs: int = 3
    lr: float = 1e-3
    eval_every: int = 8
    seed: int = 7


class IntentNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.width)
        self.pos = nn.Parameter(torch.randn(cfg.seq_len, cfg.width) * 0.02)
        layer = nn.TransformerEncoderLayer(cfg.width, 4, 96, cfg.dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.drop = nn.Dropout(cfg.dropout)
        self.head = nn.Linear(cfg.width, cfg.classes)

    def forward(self, ids):
        h = self.encoder(self.tok(ids) + self.pos)
        return self.head(self.drop(h.mean(dim=1)))


def make_data(cfg, n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, cfg.classes, (n,), generator=g)
    x = torch.randint(0, cfg.vocab, (n, cfg.seq_len), generator=g)
    hint = torch.rand(n, cfg.seq_len, generator=g) < 0.2
    x = torch.where(hint, (y * 5).unsqueeze(1) + x % 5, x)
    return TensorDataset(x, y)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    total, hits, loss_sum = 0, 0, 0.0
    for x, y in loader:
        out = model(x)
        loss_sum += F.cross_entropy(out, y, reduction="sum").item()
        hits += (out.argmax(-1) == y).sum().item()
        total += y.numel()
    return loss_sum / total, hits / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=Config.epochs)
    parser.add_argument("--out", default="out_ohrid")
    args = parser.parse_args()
    cfg = Config(epochs=args.epochs)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")

    torch.manual_seed(cfg.seed)
    model = DDP(IntentNet(cfg))
    torch.manual_seed(cfg.seed + 1000 * (rank + 1))
    train = make_data(cfg, cfg.train_size, 11)
    sampler = DistributedSampler(train, shuffle=True, seed=cfg.seed, drop_last=True)
    loader = DataLoader(train, batch_size=cfg.batch_size, sampler=sampler)
    val_loader = DataLoader(make_data(cfg, cfg.val_size, 12), batch_size=64)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.epochs * len(loader))

    step = 0
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            step += 1
            if step % cfg.eval_every == 0:
                if rank == 0:
                    vloss, acc = evaluate(model.module, val_loader)
                    log.info("step %d train %.4f val %.4f acc %.3f", step, loss.item(), vloss, acc)
                dist.barrier()
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(model.module.state_dict(), os.path.join(args.out, "last.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
