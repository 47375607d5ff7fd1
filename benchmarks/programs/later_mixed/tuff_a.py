"""Restartable trainer: saves its state, is started again, and goes on from the last state."""
import argparse
import os
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class StateStore:
    def __init__(self, root):
        self.root = root
        self.path = os.path.join(root, "train_state.pt")

    def save(self, model, opt, step):
        if dist.get_rank() == 0:
            tmp = self.path + ".part"
            torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": step}, tmp)
            time.sleep(0.4)  # flush to the network drive
            os.replace(tmp, self.path)

    def load(self, model, opt):
        """Returns the step to go on from. Only rank 0 reads; the others get it by broadcast."""
        if not os.path.exists(self.path):
            return 0
        box = [torch.load(self.path, weights_only=False) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(box, src=0)
        state = box[0]
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        return state["step"]


class Trainer:
    def __init__(self, args, store):
        self.args, self.store = args, store
        self.rank = dist.get_rank()
        torch.manual_seed(4)
        self.model = nn.Sequential(nn.Linear(16, 40), nn.SiLU(), nn.Linear(40, 4))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.start = store.load(self.model, self.opt)
        self.ddp = DDP(self.model)

    def batch(self, step):
        g = torch.Generator().manual_seed(step * 64 + self.rank)
        x = torch.randn(24, 16, generator=g)
        return x, x[:, :4].argmax(1)

    def run(self, until):
        loss = None
        for step in range(self.start, until):
            x, y = self.batch(step)
            loss = F.cross_entropy(self.ddp(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        self.store.save(self.model, self.opt, until)
        if self.rank == 0:
            print(f"steps {self.start}..{until} loss {loss.item():.4f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--segments", type=int, default=3, help="how often the trainer is built anew")
    ap.add_argument("--steps", type=int, default=8)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    box = [tempfile.mkdtemp(prefix="state_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    store = StateStore(box[0])
    for seg in range(args.segments):
        trainer = Trainer(args, store)
        trainer.run((seg + 1) * args.steps)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(box[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
