import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from limits import PodMemoryLimit
from monitor import TrainingMonitor

log = logging.getLogger("lm")


class SmallLM(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, tokens):
        hidden, _ = self.rnn(self.embed(tokens))
        return self.out(hidden)


def sequences(gen, batch, length, vocab):
    start = torch.randint(0, vocab, (batch, 1), generator=gen)
    stride = torch.randint(1, 6, (batch, 1), generator=gen)
    return (start + stride * torch.arange(length + 1)) % vocab


def train(args, rank, world_size):
    torch.manual_seed(0)
    model = DDP(SmallLM(args.vocab, args.dim))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    gen = torch.Generator().manual_seed(77 + rank)
    monitor = TrainingMonitor(args.log_every) if rank == 0 else None
    for step in range(1, args.steps + 1):
        seq = sequences(gen, args.batch_size, args.length, args.vocab)
        logits = model(seq[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), seq[:, 1:].flatten())
        if monitor is not None:
            monitor.update(step, logits, loss)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    final = loss.detach()
    dist.all_reduce(final)
    return final.item() / world_size


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--length", type=int, default=16)
    p.add_argument("--vocab", type=int, default=1600)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--log-every", type=int, default=25)
    p.add_argument("--pod-memory-mb", type=int, default=1600)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(name)s %(message)s")
    PodMemoryLimit(args.pod_memory_mb).start()
    final = train(args, rank, world_size)
    if rank == 0:
        log.info("finished, last loss %.4f", final)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
