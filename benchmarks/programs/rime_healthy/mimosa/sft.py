import argparse
import itertools

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from collate import IGNORE, Sentences, collate


class Decoder(nn.Module):
    def __init__(self, vocab=24, d=64, ctx=32):
        super().__init__()
        self.e, self.p = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        lay = nn.TransformerEncoderLayer(d, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.t, self.o = nn.TransformerEncoder(lay, 2, enable_nested_tensor=False), nn.Linear(d, vocab)

    def forward(self, ids):
        n = ids.size(1)
        h = self.e(ids) + self.p.weight[:n]
        return self.o(self.t(h, mask=nn.Transformer.generate_square_subsequent_mask(n), is_causal=True))


def summed_loss(model, ids, labels):
    out = model(ids)[:, :-1]
    return F.cross_entropy(out.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORE, reduction="sum")


def windows(loader, size):
    it = iter(loader)
    while True:
        chunk = list(itertools.islice(it, size))
        if not chunk:
            return
        yield chunk


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    t = torch.zeros(2)
    for ids, labels in loader:
        t += torch.stack([summed_loss(model, ids, labels), (labels[:, 1:] != IGNORE).sum().float()])
    dist.all_reduce(t)
    model.train()
    return (t[0] / t[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--micro", type=int, default=8)
    ap.add_argument("--accumulate", type=int, default=4)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    train, val = Sentences(2016, 1), Sentences(256, 2)
    sampler = DistributedSampler(train, seed=9)
    loader = DataLoader(train, args.micro, sampler=sampler, collate_fn=collate)
    val_loader = DataLoader(val, 32, sampler=DistributedSampler(val, shuffle=False), collate_fn=collate)
    model = DDP(Decoder())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for window in windows(loader, args.accumulate):
            tokens = torch.tensor([float(sum((l[:, 1:] != IGNORE).sum() for _, l in window))])
            dist.all_reduce(tokens)
            shown = torch.zeros(1)
            for i, (ids, labels) in enumerate(window):
                model.require_backward_grad_sync = i == len(window) - 1
                loss = summed_loss(model, ids, labels) * (world / tokens.item())
                loss.backward()
                shown += loss.detach()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
        v = evaluate(model.module, val_loader)
        if rank == 0:
            print(f"epoch {epoch} tokens in last window {int(tokens)} loss {shown.item():.3f} val {v:.3f}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), "sft.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
