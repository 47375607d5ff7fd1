import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

import data


class CharLM(nn.Module):
    def __init__(self, vocab=64, dim=64, hidden=256):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.lstm = nn.LSTM(dim, hidden, num_layers=2, batch_first=True)
        self.proj = nn.Linear(hidden, vocab)

    def forward(self, ids):
        h, _ = self.lstm(self.emb(ids))
        return self.proj(h)


def lm_loss(logits, target):
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-1)


def setup():
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def main():
    ap = argparse.ArgumentParser("char language model")
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--docs-per-batch", type=int, default=16)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    rank, world = setup()
    torch.manual_seed(7)
    docs = data.rank_part(data.load_documents(), rank, world)
    model = DistributedDataParallel(CharLM())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    order = torch.Generator().manual_seed(70)
    for epoch in range(args.epochs):
        t0, losses = time.perf_counter(), []
        for ids, target in data.batches(docs, args.docs_per_batch, order):
            loss = lm_loss(model(ids), target)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            losses.append(loss.item())
        if rank == 0:
            print(f"epoch {epoch}: {len(losses)} steps, loss {sum(losses) / len(losses):.3f}, "
                  f"{time.perf_counter() - t0:.1f}s", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
