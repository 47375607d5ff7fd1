import argparse
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class ResBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.f = nn.Sequential(nn.GroupNorm(4, c), nn.SiLU(), nn.Conv2d(c, c, 3, padding=1),
                               nn.GroupNorm(4, c), nn.SiLU(), nn.Conv2d(c, c, 3, padding=1))

    def forward(self, x):
        return x + self.f(x)


class Classifier(nn.Module):
    def __init__(self, c=16, depth=3):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3, 2, 1)
        self.blocks = nn.Sequential(*[ResBlock(c) for _ in range(depth)])
        self.fc = nn.Linear(c, 5)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


class Checkpointer:
    def __init__(self, folder, keep=2):
        self.folder, self.keep, self.saved = folder, keep, []

    def save(self, model, step):
        opts = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(model, options=opts)
        if dist.get_rank() == 0:
            self._write(state, step)
        dist.barrier()

    def _write(self, state, step):
        path = os.path.join(self.folder, f"model-{step}.pt")
        torch.save(state, path)
        self.saved.append(path)
        while len(self.saved) > self.keep:
            os.unlink(self.saved.pop(0))
        print(f"wrote {len(state)} tensors at step {step}", flush=True)


def build():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    torch.manual_seed(0)
    model = Classifier()
    for b in model.blocks:
        fully_shard(b, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=24)
    ap.add_argument("--save-every", type=int, default=8)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    box = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(box)
    model = build()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ckpt = Checkpointer(box[0])
    gen = torch.Generator().manual_seed(rank)
    for step in range(1, args.steps + 1):
        y = torch.randint(0, 5, (8,), generator=gen)
        x = torch.randn(8, 3, 16, 16, generator=gen) + y.view(-1, 1, 1, 1) / 3
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % args.save_every == 0:
            ckpt.save(model, step)
    dist.barrier()
    if rank == 0:
        print(f"done, loss {loss.item():.3f}")
        shutil.rmtree(box[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
