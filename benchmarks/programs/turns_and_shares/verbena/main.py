"""Masked-letter model with gathered gradients over uneven windows and uneven sentence lengths."""
import argparse
import os
import tempfile
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from windows import windows

PAD, MASK, FIRST = 0, 1, 2


class Verses(Dataset):
    """Arithmetic letter runs of 6 to 20 letters, a fifth of them masked."""

    def __init__(self, count, letters, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(count):
            n = int(torch.randint(6, 21, (1,), generator=g))
            start = int(torch.randint(letters, (1,), generator=g))
            stride = int(torch.randint(1, 4, (1,), generator=g))
            text = (torch.arange(n) * stride + start) % letters + FIRST
            hide = torch.rand(n, generator=g) < 0.2
            hide[int(torch.randint(n, (1,), generator=g))] = True
            self.rows.append((text.masked_fill(hide, MASK), text.masked_fill(~hide, -100)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    pad = nn.utils.rnn.pad_sequence
    return (pad([r[0] for r in rows], batch_first=True, padding_value=PAD),
            pad([r[1] for r in rows], batch_first=True, padding_value=-100))


class LetterNet(nn.Module):
    def __init__(self, letters, width):
        super().__init__()
        self.table = nn.Embedding(letters + FIRST, width, padding_idx=PAD)
        self.rnn = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, letters + FIRST)

    def forward(self, x):
        return self.out(self.rnn(self.table(x))[0])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--letters", type=int, default=14)
    ap.add_argument("--width", type=int, default=32)
    ap.add_argument("--micro", type=int, default=16)
    ap.add_argument("--window", type=int, default=4)
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--average-from", type=int, default=3)
    ap.add_argument("--lr", type=float, default=1e-2)
    ap.add_argument("--seed", type=int, default=15)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "verses"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    net = LetterNet(args.letters, args.width)
    ddp = DistributedDataParallel(net)
    average = AveragedModel(net)
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    data = Verses(1344, args.letters, 1)
    held = collate([row for row in Verses(200, args.letters, 2)])
    sampler = DistributedSampler(data, world, rank, seed=args.seed, drop_last=True)
    loader = DataLoader(data, args.micro, sampler=sampler, collate_fn=collate, drop_last=True)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        epoch_sum = torch.zeros(2, dtype=torch.double)
        for window in windows(loader, args.window):
            hidden = torch.tensor(float(sum((y != -100).sum().item() for _, y in window)))
            dist.all_reduce(hidden)
            opt.zero_grad(set_to_none=True)
            for i, (x, y) in enumerate(window):
                last = i == len(window) - 1
                with nullcontext() if last else ddp.no_sync():
                    nll = F.cross_entropy(ddp(x).flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum")
                    (nll * world / hidden).backward()
                epoch_sum[0] += nll.item()
            epoch_sum[1] += hidden.item() / world
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
        if epoch >= args.average_from:
            average.update_parameters(net)
        dist.all_reduce(epoch_sum)
        if rank == 0:
            print(f"epoch {epoch} nll {(epoch_sum[0] / epoch_sum[1]).item():.4f} "
                  f"over {int(epoch_sum[1])} hidden letters", flush=True)
    if rank == 0:
        with torch.no_grad():
            logits = average(held[0])
        hidden = held[1] != -100
        print(f"averaged weights guess {(logits.argmax(-1)[hidden] == held[1][hidden]).float().mean():.3f}", flush=True)
        os.makedirs(args.out, exist_ok=True)
        torch.save({"net": net.state_dict(), "average": average.module.state_dict()}, os.path.join(args.out, "verses.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
