import torch
import torch.distributed as dist

SCORE, REPLY = 11, 12


class ScoringService:
    """Rank 0 scores the batches of the other ranks with a frozen reference model."""

    def __init__(self, model, batches_per_client):
        self.model = model
        self.expected = batches_per_client

    @torch.no_grad()
    def serve(self):
        for i in range(max(self.expected)):
            for who, n in enumerate(self.expected, start=1):
                if i < n:
                    self.answer(who)
        return sum(self.expected)

    def answer(self, who):
        head = torch.zeros(2, dtype=torch.long)
        dist.recv(head, who, tag=SCORE)
        x = torch.empty(*head.tolist())
        dist.recv(x, who, tag=SCORE)
        dist.send(self.model(x).contiguous(), who, tag=REPLY)


class ScoringClient:
    def __init__(self, batch_size):
        self.batch_size = batch_size
        self.buffer = []

    def _ask(self, x):
        dist.send(torch.tensor(x.shape), 0, tag=SCORE)
        dist.send(x, 0, tag=SCORE)
        out = torch.empty(len(x), 1)
        dist.recv(out, 0, tag=REPLY)
        return out

    def add(self, row):
        self.buffer.append(row)
        if len(self.buffer) == self.batch_size:
            return self.flush()
        return None

    def flush(self):
        x = torch.stack(self.buffer)
        self.buffer = []
        return self._ask(x)
