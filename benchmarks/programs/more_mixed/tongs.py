"""FSDP2 with overlapped distributed checkpoints on a dedicated process group."""
import argparse
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Checkpointer:
    def __init__(self, root):
        self.root = root
        self.group = dist.new_group(backend="gloo")
        self.pending = None

    def save(self, step, model, opt):
        self.wait()
        m, o = get_state_dict(model, opt)
        self.pending = dcp.async_save({"model": m, "opt": o}, checkpoint_id=os.path.join(self.root, f"step{step}"),
                                      process_group=self.group)

    def load(self, step, model, opt):
        m, o = get_state_dict(model, opt)
        state = {"model": m, "opt": o}
        dcp.load(state, checkpoint_id=os.path.join(self.root, f"step{step}"))
        set_state_dict(model, opt, model_state_dict=state["model"], optim_state_dict=state["opt"])

    def wait(self):
        if self.pending is not None:
            self.pending.result()
            self.pending = None


def build():
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for m in net:
        if isinstance(m, nn.Linear):
            fully_shard(m, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net, torch.optim.AdamW(net.parameters(), lr=3e-3)


def batch(step, rank, n=32):
    g = torch.Generator().manual_seed(1_000_003 * step + rank)
    x = torch.randn(n, 16, generator=g)
    return x, (x[:, :4].argmax(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=30)
    ap.add_argument("--every", type=int, default=10)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    root = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(root)
    model, opt = build()
    ckpt = Checkpointer(root[0])
    for step in range(1, args.steps + 1):
        x, y = batch(step, rank)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % args.every == 0:
            ckpt.save(step, model, opt)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
    ckpt.wait()
    ckpt.load(args.steps, model, opt)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(root[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
