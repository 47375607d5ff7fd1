import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from meters import Average, Board

log = logging.getLogger("spectra")


def get_args():
    p = argparse.ArgumentParser("spectra classification")
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--width", type=int, default=192)
    p.add_argument("--out", default="spectra_last.pt")
    p.add_argument("--seed", type=int, default=7)
    return p.parse_args()


def make_split(n, seed):
    g = torch.Generator().manual_seed(seed)
    basis = torch.randn(6, 128, generator=torch.Generator().manual_seed(99))
    y = torch.randint(0, 6, (n,), generator=g)
    x = basis[y] + 1.5 * torch.randn(n, 128, generator=g)
    return TensorDataset(x.unsqueeze(1), y)


class SpectraNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, width // 4, 9, padding=4), nn.GELU(),
            nn.Conv1d(width // 4, width, 9, stride=2, padding=4), nn.GELU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2), nn.GELU(),
            nn.AdaptiveAvgPool1d(4), nn.Flatten(),
        )
        self.head = nn.Linear(width * 4, 6)

    def forward(self, x):
        return self.head(self.body(x))


def fit_epoch(model, loader, opt, board):
    model.train()
    for x, y in loader:
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        board["loss"].update(loss.item(), len(y))
        board["acc"].update((logits.argmax(1) == y).float().mean().item(), len(y))


@torch.no_grad()
def evaluate(model, loader, board):
    model.eval()
    for x, y in loader:
        logits = model(x)
        board["val_loss"].update(F.cross_entropy(logits, y).item(), len(y))
        board["val_acc"].update((logits.argmax(1) == y).float().mean().item(), len(y))


def main():
    args = get_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format="%(asctime)s %(message)s")
    torch.manual_seed(args.seed)

    train_set, val_set = make_split(1536, 1), make_split(512, 2)
    sampler = DistributedSampler(train_set, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler, drop_last=True)
    val_loader = DataLoader(val_set, args.batch_size,
                            sampler=DistributedSampler(val_set, shuffle=False))

    model = DDP(SpectraNet(args.width))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train_board = Board(Average("loss"), Average("acc", "{:.3f}"))
    val_board = Board(Average("val_loss"), Average("val_acc", "{:.3f}"))

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train_board.reset()
        val_board.reset()
        fit_epoch(model, loader, opt, train_board)
        evaluate(model.module, val_loader, val_board)
        if rank == 0:
            log.info("epoch %d  %s  %s", epoch, train_board.summary(), val_board.summary())
            torch.save({"model": model.module.state_dict(), "epoch": epoch}, args.out + ".tmp")
            os.replace(args.out + ".tmp", args.out)
        dist.barrier()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
