import argparse
import logging
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

log = logging.getLogger("kestrel")


def prepare_shard(rank, rows, seconds):
    """Decompress and tokenise the shard of this rank; the shards are of different size."""
    log.info("preparing shard %d", rank)
    deadline = time.monotonic() + seconds * rank
    g = torch.Generator().manual_seed(rank)
    tokens = torch.randint(0, 50, (rows, 12), generator=g)
    while time.monotonic() < deadline:
        time.sleep(0.5)
    log.info("shard %d ready", rank)
    return tokens


class TinyLM(nn.Module):
    def __init__(self, vocab=50, dim=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.out(h)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rows", type=int, default=640)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--prepare-seconds", type=float, default=20)
    args = ap.parse_args()
    rank = int(os.environ["RANK"])
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(message)s")
    tokens = prepare_shard(rank, args.rows, args.prepare_seconds)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(TinyLM())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(args.epochs):
        for chunk in tokens.split(64):
            logits = model(chunk[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            log.info("epoch %d loss %.4f", epoch, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
