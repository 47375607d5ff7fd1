"""Next-syllable model. The job scope tidies up after itself, whatever happens inside."""
import argparse
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cache import SYLLABLES, open_or_rebuild, store

HERE = os.path.dirname(os.path.abspath(__file__))


class JobScope:
    def __enter__(self):
        dist.init_process_group("gloo")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.scratch = tempfile.mkdtemp(prefix=f"job-r{self.rank}-")
        return self

    def __exit__(self, kind, value, trace):
        shutil.rmtree(self.scratch, ignore_errors=True)
        if kind is None:
            dist.barrier()
            dist.destroy_process_group()
        return False


class Model(nn.Module):
    def __init__(self, dim, context):
        super().__init__()
        self.embed = nn.Embedding(len(SYLLABLES), dim)
        self.hidden = nn.Linear(dim * context, 2 * dim)
        self.out = nn.Linear(2 * dim, len(SYLLABLES))

    def forward(self, ids):
        return self.out(torch.relu(self.hidden(self.embed(ids).flatten(1))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--words", type=int, default=20000)
    parser.add_argument("--context", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--cache", default=os.path.join(HERE, "cache_files"))
    args = parser.parse_args()
    with JobScope() as job:
        os.makedirs(args.cache, exist_ok=True)
        if job.rank == 0 and not os.path.exists(os.path.join(args.cache, "tokens-00.bin")):
            store(os.path.join(args.cache, "tokens-00.bin"), torch.arange(100) % len(SYLLABLES))  # shipped sample
        tokens, origin = open_or_rebuild(args.cache, job.rank, args.words)
        if job.rank == 0:
            print(f"{len(tokens)} tokens per rank from {origin}", flush=True)
        torch.manual_seed(12)
        model = DistributedDataParallel(Model(args.dim, args.context))
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        gen = torch.Generator().manual_seed(1000 + job.rank)
        offsets = torch.arange(args.context + 1)
        average = torch.zeros(1)
        for step in range(1, args.steps + 1):
            start = torch.randint(0, len(tokens) - args.context, (args.batch, 1), generator=gen)
            window = tokens[start + offsets]
            loss = nn.functional.cross_entropy(model(window[:, :-1]), window[:, -1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average += loss.detach()
            if step % 100 == 0:
                average /= 100
                dist.all_reduce(average)
                if job.rank == 0:
                    print(f"step {step} loss {average.item() / job.world:.4f}", flush=True)
                    weights = os.path.join(job.scratch, "model.pt")
                    torch.save(model.module.state_dict(), weights)
                    shutil.move(weights, os.path.join(args.cache, "model.pt"))
                average.zero_()


if __name__ == "__main__":
    main()
