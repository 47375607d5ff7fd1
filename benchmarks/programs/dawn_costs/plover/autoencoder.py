"""Wide autoencoder; rank 0 keeps two rotating checkpoints on disk, verified after each write."""
import hashlib
import os
import tempfile
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, SAVE_EVERY, KEEP = 72, 24, 2


class Heartbeat(threading.Thread):
    """Notes when the main loop was last alive and reports long silences."""

    def __init__(self, rank, limit=60.0):
        super().__init__(daemon=True)
        self.rank, self.limit, self.seen = rank, limit, time.monotonic()
        self.stopped = threading.Event()

    def beat(self):
        self.seen = time.monotonic()

    def run(self):
        while not self.stopped.wait(0.5):
            silent = time.monotonic() - self.seen
            if silent > self.limit:
                print(f"rank {self.rank}: no step for {silent:.0f} s", flush=True)
                self.beat()


class Checkpoints:
    def __init__(self, folder):
        self.folder, self.paths = folder, []

    def mirror(self, path, chunk=1 << 20, pause=0.08):
        """Second copy, at the speed that the storage team allows."""
        with open(path, "rb") as src, open(os.path.join(self.folder, "latest.pt"), "wb") as dst:
            while piece := src.read(chunk):
                dst.write(piece)
                time.sleep(pause)

    def write(self, step, model, opt):
        path = os.path.join(self.folder, f"ae_{step}.pt")
        torch.save({"step": step, "model": model.state_dict(), "opt": opt.state_dict()}, path + ".part")
        with open(path + ".part", "rb") as f:
            digest = hashlib.sha256(f.read()).hexdigest()
            os.fsync(f.fileno())
        torch.load(path + ".part", weights_only=True)
        os.replace(path + ".part", path)
        self.mirror(path)
        self.paths.append(path)
        while len(self.paths) > KEEP:
            os.remove(self.paths.pop(0))
        return digest[:10]


def main():
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(6)
    net = nn.Sequential(nn.Linear(512, 1536), nn.ReLU(), nn.Linear(1536, 64), nn.Linear(64, 1536), nn.ReLU(),
                        nn.Linear(1536, 512))
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters(), lr=5e-4)
    mixing = torch.randn(24, 512, generator=torch.Generator().manual_seed(1)) / 24 ** 0.5
    gen = torch.Generator().manual_seed(40 + rank)
    heart = Heartbeat(rank)
    heart.start()
    with tempfile.TemporaryDirectory(prefix="ae-") as folder:
        checkpoints = Checkpoints(folder)
        for step in range(1, STEPS + 1):
            x = torch.tanh(torch.randn(64, 24, generator=gen) @ mixing)
            loss = F.mse_loss(model(x), x)
            opt.zero_grad()
            loss.backward()
            opt.step()
            heart.beat()
            if step % 6 == 0 and rank == 0:
                print(f"{step} mse {loss.item():.5f}", flush=True)
            if step % SAVE_EVERY == 0:
                if rank == 0:
                    began = time.perf_counter()
                    digest = checkpoints.write(step, model.module, opt)
                    print(f"checkpoint {digest} in {time.perf_counter() - began:.1f} s", flush=True)
                dist.barrier()
    heart.stopped.set()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
