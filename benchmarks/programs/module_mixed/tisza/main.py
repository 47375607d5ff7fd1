from datetime import timedelta
from itertools import islice

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from accumulate import Accumulator
from corpus import Filtered, documents

EPOCHS, BATCH, ACCUM = 3, 8, 4


class TinyLM(nn.Module):
    def __init__(self, vocab=51, d=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, vocab)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def agreed_length(loader):
    n = torch.tensor(len(loader))
    dist.all_reduce(n, op=dist.ReduceOp.MIN)
    return int(n)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(37)
    ds = Filtered(documents(), rank, world)
    loader = DataLoader(ds, batch_size=BATCH, shuffle=True, drop_last=True)
    model = DDP(TinyLM())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    steps = agreed_length(loader)
    acc = Accumulator(model, opt, ACCUM, total=len(loader))
    for epoch in range(EPOCHS):
        for i, ids in enumerate(islice(loader, steps)):
            with acc.micro(i) as scale:
                logits = model(ids[:, :-1])
                loss = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], ignore_index=50)
                (loss / scale).backward()
        dist.barrier()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} micro-steps {steps}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
