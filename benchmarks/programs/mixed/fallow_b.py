import argparse
import datetime
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.emb = nn.Embedding(300, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, 300)

    def forward(self, ids):
        hidden, _ = self.rnn(self.emb(ids))
        return self.out(hidden)


def save_checkpoint(path, step, model, optimizer):
    torch.save({
        "step": step,
        "model": model.module.state_dict(),
        "optimizer": optimizer.state_dict(),
    }, path)


def batches(seed, steps, size=8, length=24):
    gen = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        start = torch.randint(0, 300, (size, 1), generator=gen)
        yield (start + torch.arange(length + 1)) % 300


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--save-every", type=int, default=25)
    parser.add_argument("--out", default="fallow_ckpt")
    args = parser.parse_args()

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=2e-3)
    for step, ids in enumerate(batches(77 + rank, args.steps), start=1):
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.save_every == 0:
            optimizer.consolidate_state_dict(to=0)
            if rank == 0:
                os.makedirs(args.out, exist_ok=True)
                save_checkpoint(os.path.join(args.out, f"{step}.pt"), step, model, optimizer)
                print(f"step {step} loss {loss.item():.4f} saved", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
