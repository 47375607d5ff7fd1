import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sharded_utils import CharLM, shard, token_stream
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, DistributedSampler


def local(t):
    return t.to_local() if isinstance(t, DTensor) else t


@torch.no_grad()
def clip_gradients(params, max_norm):
    grads = [local(p.grad) for p in params if p.grad is not None]
    squares = torch.stack([g.pow(2).sum() for g in grads]).sum()
    dist.all_reduce(squares)
    total = squares.sqrt()
    coef = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for g in grads:
        g.mul_(coef)
    return total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--bs", type=int, default=8)
    ap.add_argument("--max-norm", type=float, default=0.3)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = shard(CharLM())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = token_stream(256, 32)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.bs, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, ids in enumerate(loader):
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            norm = clip_gradients(model.parameters(), args.max_norm)
            opt.step()
            opt.zero_grad(set_to_none=True)
            if step % 8 == 0 and rank == 0:
                print(f"{epoch}/{step} loss {loss.item():.3f} |g| {norm.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
