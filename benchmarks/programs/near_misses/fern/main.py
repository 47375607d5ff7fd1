"""Melody model: next-note prediction with a GRU, model selection on held-out perplexity per note."""
import argparse
import math
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

NOTES, REST = 37, 0
PHRASE = 25


def melody(length, gen):
    """A tune in one of eight modes; the mode is only heard as it goes on."""
    mode = int(torch.randint(1, 9, (1,), generator=gen))
    first = int(torch.randint(0, NOTES - 1, (1,), generator=gen))
    tune = (first + mode * torch.arange(length)) % (NOTES - 1) + 1
    slip = torch.rand(length, generator=gen) < 0.05
    other = torch.randint(1, NOTES, (length,), generator=gen)
    return torch.where(slip, other, tune)


class Melodist(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.note = nn.Embedding(NOTES, width, padding_idx=REST)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, NOTES)

    def forward(self, notes):
        h, _ = self.rnn(self.note(notes[:, :-1]))
        return self.out(h)


class HeldOut:
    def __init__(self, tunes, rank, world, batch=16):
        tunes = sorted(tunes, key=len)
        share = len(tunes) // world
        mine = tunes[rank * share:(rank + 1) * share]
        self.batches = [pad_sequence(mine[i:i + batch], True, REST) for i in range(0, len(mine), batch)]

    @torch.no_grad()
    def perplexity(self, net):
        net.eval()
        nll, count = 0.0, 0
        for notes in self.batches:
            target = notes[:, 1:]
            nll += F.cross_entropy(net(notes).flatten(0, 1), target.flatten(), ignore_index=REST, reduction="sum").item()
            count += (target != REST).sum().item()
        per_note = torch.tensor(nll / count, dtype=torch.float64)
        dist.all_reduce(per_note)
        per_note /= dist.get_world_size()
        net.train()
        return math.exp(per_note.item())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=5e-3)
    ap.add_argument("--seed", type=int, default=31)
    ap.add_argument("--out", default=tempfile.gettempdir())
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    gen = torch.Generator().manual_seed(args.seed)
    phrases = TensorDataset(torch.stack([melody(PHRASE, gen) for _ in range(1024)]))
    tunes = [melody(int(torch.randint(3, 80, (1,), generator=gen)), gen) for _ in range(96)]
    held = HeldOut(tunes, rank, world)

    sampler = DistributedSampler(phrases, world, rank, seed=args.seed, drop_last=True)
    loader = DataLoader(phrases, args.batch, sampler=sampler, drop_last=True)
    torch.manual_seed(args.seed)
    model = DDP(Melodist())
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    best = math.inf

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (notes,) in loader:
            logits = model(notes)
            loss = F.cross_entropy(logits.flatten(0, 1), notes[:, 1:].flatten())
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        ppl = held.perplexity(model.module)
        if rank == 0:
            print(f"epoch {epoch} loss {shown.item() / world:.4f} perplexity {ppl:.3f}", flush=True)
            if ppl < best:
                torch.save({"epoch": epoch, "ppl": ppl, "model": model.module.state_dict()}, os.path.join(args.out, "melodist.pt"))
        best = min(best, ppl)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
