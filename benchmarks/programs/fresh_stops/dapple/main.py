"""Fine-tune a document reader, sharded over the processes with fully_shard."""
import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

from documents import Documents, collate
from model import Reader


def shard(model, mesh):
    fully_shard(model.vision, mesh=mesh)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def gather_state(model):
    return {k: (v.full_tensor() if hasattr(v, "full_tensor") else v) for k, v in model.state_dict().items()}


def train(args):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(args.seed)
    model = shard(Reader(), mesh)
    optim = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = Documents()
    sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, collate_fn=collate, drop_last=True)
    done = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for batch in loader:
            target = batch.pop("target")
            loss = torch.nn.functional.mse_loss(model(**batch), target)
            loss.backward()
            optim.step()
            optim.zero_grad(set_to_none=True)
            done += 1
            total += torch.tensor([loss.item(), 1.0])
            if dist.get_rank() == 0 and done % 8 == 0:
                print(f"update {done}: loss {loss.item():.4f}", flush=True)
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {(total[0] / total[1]).item():.4f}", flush=True)
        state = gather_state(model)
        if dist.get_rank() == 0:
            os.makedirs(args.out, exist_ok=True)
            torch.save({"model": state, "epoch": epoch}, os.path.join(args.out, "reader.pt"))


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--epochs", type=int, default=3)
    cli.add_argument("--batch", type=int, default=3)
    cli.add_argument("--lr", type=float, default=2e-3)
    cli.add_argument("--seed", type=int, default=9)
    cli.add_argument("--out", default="/tmp/reader_run")
    arguments = cli.parse_args()
    dist.init_process_group("gloo")
    train(arguments)
    dist.destroy_process_group()
