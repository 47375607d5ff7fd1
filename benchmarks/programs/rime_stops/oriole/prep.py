import datetime
import os
import time

import torch


def _simulate(n, seed):
    """Short damped-oscillator rollouts; deliberately integrated with a small step."""
    g = torch.Generator().manual_seed(seed)
    freq = 1 + 3 * torch.rand(n, generator=g)
    damp = 0.05 + 0.4 * torch.rand(n, generator=g)
    pos = torch.randn(n, generator=g)
    vel = torch.zeros(n)
    out = []
    for k in range(12000):
        vel = vel + 5e-4 * (-(freq ** 2) * pos - damp * vel)
        pos = pos + 5e-4 * vel
        if k % 200 == 0:
            out.append(pos.clone())
    traj = torch.stack(out, 1) + 0.01 * torch.randn(n, len(out), generator=g)
    return traj, torch.stack([freq, damp], 1)


def prepare(root, store, rank, n=6000, chunks=8, limit=datetime.timedelta(minutes=10)):
    """The first worker writes the table; the rest wait for its message in the store."""
    path = os.path.join(root, "rollouts.pt")
    if rank == 0:
        os.makedirs(root, exist_ok=True)
        t0 = time.time()
        parts = []
        for c in range(chunks):
            parts.append(_simulate(n // chunks, seed=c))
            print(f"prepared {c + 1}/{chunks} ({time.time() - t0:.1f}s)", flush=True)
        traj, params = (torch.cat(p) for p in zip(*parts))
        torch.save({"traj": traj, "params": params}, path + ".tmp")
        os.replace(path + ".tmp", path)
        store.set("rollouts/ready", path)
    else:
        store.wait(["rollouts/ready"], limit)
        path = store.get("rollouts/ready").decode()
    return torch.load(path)
