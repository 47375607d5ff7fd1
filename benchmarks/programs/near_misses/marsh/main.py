"""Continued pre-training of a small language model on ward notes.

Every replica rehearses the whole replay set (general instructions) each epoch
next to its share of the note files; with N replicas a replay row therefore
weighs N times a note row, which is the ratio the recipe was tuned for.
"""
import argparse
import json
import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, RandomSampler

VOCAB, LENGTH = 48, 24


def compose(step, rows, gen):
    """Rows that count up by `step`, with slips."""
    first = torch.randint(0, VOCAB, (rows, 1), generator=gen)
    ids = (first + step * torch.arange(LENGTH)) % VOCAB
    slips = torch.rand(rows, LENGTH, generator=gen) < 0.08
    return torch.where(slips, torch.randint(0, VOCAB, ids.shape, generator=gen), ids)


def prepare(root, seed, note_files=32, rows_per_file=10, replay_rows=96):
    gen = torch.Generator().manual_seed(seed)
    (root / "notes").mkdir(parents=True)
    for i in range(note_files):
        rows = compose(3 + i % 4, rows_per_file, gen).tolist()
        (root / "notes" / f"ward_{i:02d}.jsonl").write_text("\n".join(json.dumps(r) for r in rows))
    replay = compose(1, replay_rows, gen).tolist()
    (root / "replay.jsonl").write_text("\n".join(json.dumps(r) for r in replay))
    held = torch.cat([compose(s, 16, gen) for s in (1, 3, 4, 5, 6)]).tolist()
    (root / "held.jsonl").write_text("\n".join(json.dumps(r) for r in held))


class Rows(Dataset):
    def __init__(self, paths):
        self.rows = [torch.tensor(json.loads(line)) for p in paths for line in p.read_text().splitlines()]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Decoder(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        hidden, _ = self.rnn(self.embed(ids[:, :-1]))
        logits = self.out(hidden)
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")


@torch.no_grad()
def held_out(model, rows, rank, world):
    total = torch.zeros(2, dtype=torch.float64)
    for i in range(rank, len(rows), world):
        token_loss = model(rows[i].unsqueeze(0))
        total[0] += token_loss.sum().double()
        total[1] += token_loss.numel()
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--seed", type=int, default=5)
    return p.parse_args()


def main():
    opts = parse()
    dist.init_process_group(backend="gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    holder = [tempfile.mkdtemp(prefix="ward-") if rank == 0 else None]
    dist.broadcast_object_list(holder, src=0)
    root = Path(holder[0])
    if rank == 0:
        prepare(root, opts.seed)
    dist.barrier()

    notes = sorted((root / "notes").glob("*.jsonl"))
    notes = notes[: len(notes) // world * world]
    train = Rows([root / "replay.jsonl"] + notes[rank::world])
    held = Rows([root / "held.jsonl"])
    order = RandomSampler(train, generator=torch.Generator().manual_seed(opts.seed * 100 + rank))
    loader = DataLoader(train, batch_size=opts.batch_size, sampler=order, drop_last=True)

    torch.manual_seed(opts.seed)
    model = DistributedDataParallel(Decoder())
    optim = torch.optim.AdamW(model.parameters(), lr=opts.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(optim, opts.epochs * len(loader))

    for epoch in range(opts.epochs):
        for ids in loader:
            loss = model(ids).mean()
            optim.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optim.step()
            sched.step()
        score = held_out(model.module, held, rank, world)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"[{epoch}] rows/replica={len(train)} last loss={mean.item() / world:.4f} held={score:.4f}", flush=True)
            torch.save(model.module.state_dict(), root / "decoder.pt")

    dist.barrier()
    if rank == 0:
        shutil.rmtree(root)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
