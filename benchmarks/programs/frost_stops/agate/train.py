import argparse
import logging
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from prepare import VOCAB, tokens

log = logging.getLogger("lm")


class NextToken(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        return self.head(self.rnn(self.emb(ids))[0])


def lm_loss(model, ids):
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


@torch.no_grad()
def perplexity(model, loader):
    acc = torch.zeros(2, dtype=torch.float64)
    for (ids,) in loader:
        acc += torch.tensor([lm_loss(model.module, ids).item() * len(ids), len(ids)])
    dist.all_reduce(acc)
    return (acc[0] / acc[1]).exp().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=16)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    box = [tempfile.mkdtemp(prefix="tokens_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)

    t0 = time.perf_counter()
    train = TensorDataset(tokens(box[0], "train", 768))
    valid = TensorDataset(tokens(box[0], "valid", 96))
    log.info("[%d] data ready after %.1f s", rank, time.perf_counter() - t0)

    torch.manual_seed(2)
    model = DDP(NextToken())
    opt = torch.optim.AdamW(model.parameters(), lr=8e-3)
    sampler = DistributedSampler(train, seed=2)
    loader = DataLoader(train, args.batch_size, sampler=sampler)
    valid_loader = DataLoader(valid, args.batch_size, sampler=DistributedSampler(valid, shuffle=False))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (ids,) in loader:
            loss = lm_loss(model, ids)
            opt.zero_grad()
            loss.backward()
            opt.step()
        ppl = perplexity(model, valid_loader)
        if rank == 0:
            log.info("epoch %d loss %.3f ppl %.2f", epoch, loss.item(), ppl)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
