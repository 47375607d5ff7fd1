import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel as DDP


class Staging:
    def __init__(self, shape, depth=4):
        self.slots = [torch.empty(shape) for _ in range(depth)]
        self.turn = 0

    def fill(self, gen):
        slot = self.slots[self.turn % len(self.slots)]
        self.turn += 1
        return slot.normal_(generator=gen)


class Saver:
    def __init__(self, root, group):
        self.root, self.group, self.pending = root, group, None

    def wait(self):
        if self.pending is None:
            return
        step, future = self.pending
        future.result()
        dist.barrier()
        if dist.get_rank() == 0:
            tmp = os.path.join(self.root, "latest.tmp")
            with open(tmp, "w") as f:
                f.write(str(step))
            os.replace(tmp, os.path.join(self.root, "latest"))
        dist.barrier()
        self.pending = None

    def save(self, step, model, optimizer):
        self.wait()
        weights, opt = get_state_dict(model, optimizer)
        where = os.path.join(self.root, f"step_{step}")
        self.pending = step, dcp.async_save({"model": weights, "optim": opt}, checkpoint_id=where, process_group=self.group)

    def load(self, model, optimizer):
        with open(os.path.join(self.root, "latest")) as f:
            step = int(f.read())
        weights, opt = get_state_dict(model, optimizer)
        state = {"model": weights, "optim": opt}
        dcp.load(state, checkpoint_id=os.path.join(self.root, f"step_{step}"))
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        return step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="teasel_ckpt")
    parser.add_argument("--steps", type=int, default=90)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    saver = Saver(args.out, dist.new_group(backend="gloo"))
    rank = dist.get_rank()
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
    dist.barrier()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    staging, history = Staging((32, 64)), []
    for step in range(1, args.steps + 1):
        x = staging.fill(gen)
        loss = nn.functional.mse_loss(model(x), x.flip(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        if step % 30 == 0:
            saver.save(step, model, optimizer)
            if rank == 0:
                print(f"step {step} loss {sum(history[-30:]) / 30:.4f}", flush=True)
    saver.wait()
    print(f"[{rank}] reloaded step {saver.load(model, optimizer)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
