"""Speech model training under a preempting scheduler: on notice finish the step, save, leave."""
import argparse
import os
import signal
import tempfile
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class StopFlag:
    def __init__(self):
        self.raised = False
        for s in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(s, self._handle)

    def _handle(self, signum, frame):
        self.raised = True


class NodeAgent(threading.Thread):
    """Stands for the node daemon which passes the notice on to the process of its slot."""

    def __init__(self, slot, after):
        super().__init__(daemon=True)
        self.slot, self.after = slot, after

    def run(self):
        if int(os.environ["LOCAL_RANK"]) == self.slot:
            time.sleep(self.after)
            os.kill(os.getpid(), signal.SIGUSR1)


class Acoustic(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(20, 32, 5, padding=2), nn.ReLU(), nn.Conv1d(32, 32, 5, padding=2), nn.ReLU())
        self.out = nn.Conv1d(32, 20, 1)

    def forward(self, x):
        return self.out(self.conv(x))


def save(folder, step, model, opt):
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save({"step": step, "model": model.module.state_dict(), "opt": opt.state_dict()},
                   os.path.join(folder, f"checkpoint_{step:08d}.pt"))
    dist.barrier()


def train(args, folder):
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Acoustic())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    flag = StopFlag()
    NodeAgent(args.slot, args.notice_after).start()
    for step in range(1, args.max_steps + 1):
        mel = torch.randn(6, 20, 60, generator=gen)
        loss = nn.functional.l1_loss(model(mel), mel.roll(1, -1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.01)
        stop = torch.tensor(int(flag.raised))
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop:
            save(folder, step, model, opt)
            if rank == 0:
                print(f"stopped at step {step}", flush=True)
            return
        if step % args.ckpt_freq == 0:
            save(folder, step, model, opt)
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--max-steps", type=int, default=2000)
    ap.add_argument("--ckpt-freq", type=int, default=100000)
    ap.add_argument("--slot", type=int, default=1)
    ap.add_argument("--notice-after", type=float, default=2.5)
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as d:
        train(ap.parse_args(), d)
    dist.destroy_process_group()
