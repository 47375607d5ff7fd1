import torch
import torch.distributed as dist

DTYPES = [torch.float32, torch.long]


def send_tensor(t, dst):
    """Self describing message: rank of tensor and dtype, shape, payload."""
    dist.send(torch.tensor([t.dim(), DTYPES.index(t.dtype)]), dst)
    dist.send(torch.tensor(t.shape), dst)
    dist.send(t.detach().contiguous(), dst)


def recv_tensor(src):
    head = torch.empty(2, dtype=torch.long)
    dist.recv(head, src)
    shape = torch.empty(int(head[0]), dtype=torch.long)
    dist.recv(shape, src)
    out = torch.empty(shape.tolist(), dtype=DTYPES[int(head[1])])
    dist.recv(out, src)
    return out


def send_count(n, dst):
    dist.send(torch.tensor([n]), dst)


def recv_count(src):
    n = torch.empty(1, dtype=torch.long)
    dist.recv(n, src)
    return int(n)
