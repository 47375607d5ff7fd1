import collections
import time

import torch
import torch.distributed as dist

TAG_WEIGHTS, TAG_RESULT = 11, 12
STOP = -1.0


def _pack(step, model):
    return torch.cat([torch.tensor([float(step)])] + [p.detach().flatten() for p in model.parameters()])


class EvalClient:
    """Sends snapshots and receives the results without blocking the training loop."""

    def __init__(self, peer):
        self.peer = peer
        self.sends = []
        self.results = collections.deque()

    def submit(self, step, model):
        vec = _pack(step, model)
        self.size = vec.numel()
        self.sends.append((vec, dist.isend(vec, self.peer, tag=TAG_WEIGHTS)))
        buf = torch.empty(2)
        self.results.append((buf, dist.irecv(buf, self.peer, tag=TAG_RESULT)))

    def poll(self):
        while self.results and self.results[0][1].is_completed():
            buf, work = self.results.popleft()
            work.wait()
            yield int(buf[0]), float(buf[1])

    def finish(self):
        bye = torch.full((self.size,), STOP)
        dist.isend(bye, self.peer, tag=TAG_WEIGHTS).wait()
        for _, work in self.sends:
            work.wait()
        while self.results:
            buf, work = self.results.popleft()
            work.wait()
            yield int(buf[0]), float(buf[1])


@torch.no_grad()
def serve(model, data, source, seconds):
    params = list(model.parameters())
    buf = torch.empty(1 + sum(p.numel() for p in params))
    count = 0
    while True:
        dist.recv(buf, source, tag=TAG_WEIGHTS)
        if buf[0] == STOP:
            return count
        off = 1
        for p in params:
            p.copy_(buf[off:off + p.numel()].view_as(p))
            off += p.numel()
        hits = 0
        for part in data.split(32):
            hits += int((model(part[:, :-1]).argmax(-1) == part[:, 1:]).sum())
            time.sleep(seconds * len(part) / len(data))  # beam search
        dist.send(torch.tensor([float(buf[0]), hits / data[:, 1:].numel()]), source, tag=TAG_RESULT)
        count += 1
