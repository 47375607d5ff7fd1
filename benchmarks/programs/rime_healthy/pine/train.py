import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torchdata.stateful_dataloader import StatefulDataLoader

from stream import ShardStream


def checkpoint(folder, step, model, opt, loader):
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, loader.state_dict())
    if dist.get_rank() == 0:
        os.makedirs(folder, exist_ok=True)
        torch.save({"step": step, "model": model.module.state_dict(), "opt": opt.state_dict(), "loaders": states},
                   os.path.join(folder, "last.tmp"))
        os.replace(os.path.join(folder, "last.tmp"), os.path.join(folder, "last.pt"))
    dist.barrier()


@torch.no_grad()
def evaluate(model):
    g = torch.Generator().manual_seed(10 ** 6)
    x = torch.randn(2000, 20, generator=g)[dist.get_rank()::dist.get_world_size()]
    y = (x[:, 0] * x[:, 1] + x[:, 2].abs() - 0.7 > 0).long()
    model.eval()
    hit = (model(x).argmax(1) == y).sum().float()
    model.train()
    dist.all_reduce(hit)
    return hit.item() / 2000


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--stop-at", type=int, default=300)
    ap.add_argument("--save-every", type=int, default=150)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--folder", default="ckpt")
    ap.add_argument("--resume", action="store_true")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    stream = ShardStream(shards=32, per_shard=512, epochs=4, seed=17)
    loader = StatefulDataLoader(stream, batch_size=args.batch, num_workers=args.workers, drop_last=True)
    model = DDP(nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    if args.resume:
        ck = torch.load(os.path.join(args.folder, "last.pt"), weights_only=False)
        model.module.load_state_dict(ck["model"])
        opt.load_state_dict(ck["opt"])
        loader.load_state_dict(ck["loaders"][rank])
        step = ck["step"]
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % args.save_every == 0:
            acc = evaluate(model.module)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} acc {acc:.3f}", flush=True)
            checkpoint(args.folder, step, model, opt, loader)
        if step >= args.stop_at:
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
