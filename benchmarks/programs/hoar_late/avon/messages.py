import enum

import torch
import torch.distributed as dist


class Kind(enum.IntEnum):
    SAMPLE = 1
    STOP = 2


class Link:
    """Messages have a header (kind, rows) and for samples a body."""

    def __init__(self, width):
        self.width = width

    def send(self, kind, dst, body=None):
        rows = 0 if body is None else len(body)
        dist.send(torch.tensor([int(kind), rows]), dst)
        if rows:
            dist.send(body.contiguous(), dst)

    def recv_any(self):
        head = torch.zeros(2, dtype=torch.long)
        src = dist.recv(head)
        kind, rows = head.tolist()
        body = None
        if rows:
            body = torch.empty(rows, self.width)
            dist.recv(body, src)
        return src, Kind(kind), body
