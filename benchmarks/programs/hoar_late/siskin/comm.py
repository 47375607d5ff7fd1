import pickle

import torch
import torch.distributed as dist


def send_obj(obj, dst):
    raw = torch.tensor(list(pickle.dumps(obj)), dtype=torch.uint8)
    dist.send(torch.tensor([len(raw)]), dst=dst)
    dist.send(raw, dst=dst)


def recv_obj(src=None):
    n = torch.zeros(1, dtype=torch.int64)
    peer = dist.recv(n, src=src)
    raw = torch.empty(n.item(), dtype=torch.uint8)
    dist.recv(raw, src=peer)
    return peer, pickle.loads(bytes(raw.tolist()))
