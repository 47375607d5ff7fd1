"""Two ranks train, the last rank evaluates snapshots on the side.

The evaluator is slow on purpose (beam search); trainers go on and collect the results later.
"""
import argparse
import logging
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from side_eval import EvalClient, serve

log = logging.getLogger("asyneval")


class CopyNet(nn.Module):
    def __init__(self, vocab=40, dim=64, hidden=112):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def sample(g, n, t=24, vocab=40):
    start = torch.randint(0, vocab, (n, 1), generator=g)
    stride = torch.randint(1, 4, (n, 1), generator=g)
    return (start + stride * torch.arange(t + 1)) % vocab


def train(args, rank, group, evaluator):
    torch.manual_seed(0)
    model = DDP(CopyNet(), process_group=group)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    client = EvalClient(evaluator) if rank == 0 else None
    g = torch.Generator().manual_seed(60 + rank)
    for step in range(1, args.steps + 1):
        seq = sample(g, args.batch_size)
        loss = F.cross_entropy(model(seq[:, :-1]).flatten(0, 1), seq[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if client is not None:
            if step % args.eval_every == 0:
                client.submit(step, model.module)
            for s, acc in client.poll():
                log.info("step %d: accuracy of snapshot %d is %.3f", step, s, acc)
            if step % 50 == 0:
                log.info("step %d loss %.4f", step, loss.item())
    if client is not None:
        for s, acc in client.finish():
            log.info("end: accuracy of snapshot %d is %.3f", s, acc)
        out = args.out or tempfile.mkdtemp(prefix="aeval_")
        os.makedirs(out, exist_ok=True)
        torch.save(model.module.state_dict(), os.path.join(out, "model.pt"))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=240)
    ap.add_argument("--eval-every", type=int, default=80)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--eval-seconds", type=float, default=8.0)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank{rank} %(message)s")
    evaluator = world - 1
    group = dist.new_group(list(range(evaluator)))
    if rank == evaluator:
        data = sample(torch.Generator().manual_seed(1), 256)
        n = serve(CopyNet(), data, source=0, seconds=args.eval_seconds)
        log.info("evaluated %d snapshots", n)
    else:
        train(args, rank, group, evaluator)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
