"""A pool of workers on top of point-to-point messages. Rank 0 is the manager."""
import pickle
import traceback

import torch
import torch.distributed as dist


def put(obj, dst):
    data = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
    dist.send(torch.tensor([data.numel()]), dst)
    dist.send(data, dst)


def get(src=None):
    size = torch.zeros(1, dtype=torch.long)
    who = dist.recv(size, src)
    data = torch.empty(int(size), dtype=torch.uint8)
    dist.recv(data, who)
    return who, pickle.loads(data.numpy().tobytes())


class Pool:
    def __init__(self):
        self.workers = list(range(1, dist.get_world_size()))

    def map(self, tasks, retries=1):
        waiting = [(i, t, 0) for i, t in enumerate(tasks)]
        running, out = {}, [None] * len(waiting)
        free = list(self.workers)
        while waiting or running:
            while free and waiting:
                job = waiting.pop(0)
                worker = free.pop(0)
                running[worker] = job
                put(("task", job[1]), worker)
            who, (ok, value) = get()
            index, task, tries = running.pop(who)
            free.append(who)
            if ok:
                out[index] = value
            elif tries < retries:
                waiting.append((index, dict(task, attempt=tries + 1), tries + 1))
            else:
                out[index] = {"error": value}
        return out

    def close(self):
        for w in self.workers:
            put(("stop", None), w)


def worker_loop(fn):
    handled = 0
    while True:
        _, (kind, task) = get(0)
        if kind == "stop":
            return handled
        try:
            answer = (True, fn(task))
        except Exception:
            answer = (False, traceback.format_exc(limit=1).strip().splitlines()[-1])
        put(answer, 0)
        handled += 1
