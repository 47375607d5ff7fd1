"""Character-level next-token training with checkpoints that don't stall the loop.

    torchrun --nproc-per-node 2 main.py --steps 120 --save-every 20
"""
import argparse
import io
import pickle
import queue
import threading
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def markov_text(length, symbols, seed):
    g = torch.Generator().manual_seed(seed)
    table = torch.rand(symbols, symbols, generator=g).pow(6)
    table /= table.sum(1, keepdim=True)
    out = [0]
    for _ in range(length - 1):
        out.append(int(torch.multinomial(table[out[-1]], 1, generator=g)))
    return torch.tensor(out)


class WindowStream:
    """Random windows of a text; every rank draws from its own generator."""

    def __init__(self, text, window, batch, seed):
        self.text, self.window, self.batch = text, window, batch
        self.gen = torch.Generator().manual_seed(seed)

    def __iter__(self):
        return self

    def __next__(self):
        at = torch.randint(0, len(self.text) - self.window - 1, (self.batch,), generator=self.gen)
        rows = torch.stack([self.text[i:i + self.window + 1] for i in at.tolist()])
        return rows[:, :-1], rows[:, 1:]


class GRUModel(nn.Module):
    def __init__(self, symbols, width, layers):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.core = nn.GRU(width, width, layers, batch_first=True, dropout=0.1)
        self.mix = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.out = nn.Linear(width, symbols)

    def forward(self, x):
        h, _ = self.core(self.embed(x))
        return self.out(h + self.mix(h))


def to_host(obj):
    """Bring a nested state to host memory so the writer can have it."""
    if torch.is_tensor(obj):
        return obj.detach().cpu()
    if isinstance(obj, dict):
        return {k: to_host(v) for k, v in obj.items()}
    if isinstance(obj, (list, tuple)):
        return type(obj)(to_host(v) for v in obj)
    return obj


class CheckpointWriter(threading.Thread):
    def __init__(self, folder):
        super().__init__(daemon=True, name="ckpt-writer")
        self.folder = folder
        self.inbox = queue.Queue(maxsize=2)
        self.written = 0
        folder.mkdir(parents=True, exist_ok=True)

    def submit(self, step, model, optimizer):
        state = {"step": step, "model": model.state_dict(), "optim": optimizer.state_dict()}
        self.inbox.put((step, to_host(state)))

    def run(self):
        while (job := self.inbox.get()) is not None:
            step, state = job
            target = self.folder / f"step{step:05d}.ckpt"
            partial = target.with_suffix(".partial")
            with open(partial, "wb") as fh:
                for name, part in self.flatten(state):
                    buf = io.BytesIO()
                    torch.save(part, buf)
                    pickle.dump((name, zlib.compress(buf.getvalue(), 6)), fh)
            partial.replace(target)
            self.written += 1

    def flatten(self, obj, prefix=""):
        if isinstance(obj, dict):
            for k, v in obj.items():
                yield from self.flatten(v, f"{prefix}/{k}")
        else:
            yield prefix, obj

    def close(self):
        self.inbox.put(None)
        self.join()


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--save-every", type=int, default=20)
    p.add_argument("--symbols", type=int, default=24)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--seed", type=int, default=3)
    p.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    return p.parse_args()


def main():
    cfg = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(cfg.seed)
    model = DistributedDataParallel(GRUModel(cfg.symbols, cfg.width, 2))
    torch.manual_seed(cfg.seed + 1000 * (rank + 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    stream = WindowStream(markov_text(6000, cfg.symbols, cfg.seed), 16, cfg.batch, cfg.seed + 17 * rank)
    writer = None
    if rank == 0:
        writer = CheckpointWriter(cfg.out / "ckpt")
        writer.start()

    running = torch.zeros(())
    for step in range(1, cfg.steps + 1):
        x, y = next(stream)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running += loss.detach()
        if step % 20 == 0:
            dist.all_reduce(running)
            if rank == 0:
                print(f"step {step:4d}  nll {running.item() / (20 * world):.4f}", flush=True)
            running.zero_()
        if writer is not None and step % cfg.save_every == 0:
            writer.submit(step, model.module, optimizer)

    if writer is not None:
        writer.close()
        print(f"{writer.written} checkpoints in {writer.folder}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
