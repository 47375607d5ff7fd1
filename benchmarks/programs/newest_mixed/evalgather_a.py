import os
import pickle
import socket
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Record:
    def __init__(self, uid, score, decoder=None):
        self.uid, self.score, self.decoder = uid, score, decoder

    def rendered(self):
        return self.decoder(self.uid) if self.decoder else str(self.uid)


class Evaluation:
    def __init__(self, rank):
        self.rank = rank
        self.records = []

    def decoder_for(self, uid):
        if uid % 31 == 0:
            return lambda u: f"<long:{u}>"
        return None

    @torch.no_grad()
    def run(self, model, batch, base):
        scores = model.module(batch).squeeze(1).tolist()
        for i, s in enumerate(scores):
            uid = base + i
            self.records.append(Record(uid, s, self.decoder_for(uid)))

    def take(self):
        out, self.records = self.records, []
        return out


def safe_gather(payload):
    world = dist.get_world_size()
    out = [None] * world
    try:
        pickle.dumps(payload)
    except (pickle.PicklingError, AttributeError, TypeError) as e:
        warnings.warn(f"payload dropped: {e}")
        payload = []
    try:
        dist.all_gather_object(out, payload)
    except (pickle.PicklingError, AttributeError, TypeError) as e:
        warnings.warn(f"gather skipped: {e}")
        return list(payload)
    return [r for part in out for r in part or []]


def worker(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(rank)
    evaluation = Evaluation(rank)
    for step in range(1, 121):
        x = torch.randn(16, 12, generator=gen)
        loss = (model(x).squeeze(1) - x[:, 0]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            evaluation.run(model, torch.randn(6, 12, generator=gen), base=1 + (step // 10 * world + rank) * 6)
            rows = safe_gather(evaluation.take())
            if rank == 0:
                print(f"step {step} loss {loss.item():.3f} records {len(rows)} last {rows[-1].rendered()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":
    mp.spawn(worker, args=(2, free_port()), nprocs=2)
