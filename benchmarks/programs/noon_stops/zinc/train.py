import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from data import MixedBatches
from model import CaptionModel


def parallelize(model, mesh):
    for blk in model.vision.blocks:
        fully_shard(blk, mesh=mesh)
    fully_shard(model.vision, mesh=mesh)
    for blk in model.lm.blocks:
        fully_shard(blk, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train_epoch(model, opt, batches, epoch, args):
    running = torch.zeros(2)
    for batch in batches.epoch(epoch, args.steps):
        logits = model(batch["input_ids"], batch["pixel_values"])
        loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        running += torch.tensor([loss.item(), 1.0])
    dist.all_reduce(running)
    return (running[0] / running[1]).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--seq-len", type=int, default=32)
    p.add_argument("--text-only-ratio", type=float, default=0.06)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    torch.manual_seed(0)
    model = parallelize(CaptionModel(), mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    batches = MixedBatches(rank, world, args.batch_size, args.seq_len, 512, args.text_only_ratio, seed=5)

    for epoch in range(args.epochs):
        loss = train_epoch(model, opt, batches, epoch, args)
        if rank == 0:
            print(f"epoch {epoch} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
