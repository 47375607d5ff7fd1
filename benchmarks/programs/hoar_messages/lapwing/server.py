import torch
import torch.distributed as dist


def flatten(params):
    return torch.cat([p.detach().reshape(-1) for p in params])


def unflatten_(vec, params):
    off = 0
    for p in params:
        p.data.copy_(vec[off:off + p.numel()].view_as(p))
        off += p.numel()


class ParameterServer:
    """Holds the master copy. Workers push a gradient, and get the fresh weights back."""

    def __init__(self, model, n_samples, batch_size, epochs, lr, n_workers):
        self.params = list(model.parameters())
        self.lr = lr
        shards = [len(range(w, n_samples, n_workers)) for w in range(n_workers)]
        self.pushes_per_epoch = sum((n + batch_size - 1) // batch_size for n in shards)
        self.epochs = epochs

    def serve(self):
        grad = torch.empty(sum(p.numel() for p in self.params))
        weights = flatten(self.params)
        served = {}
        for _ in range(self.epochs * self.pushes_per_epoch):
            src = dist.recv(grad)
            weights.add_(grad, alpha=-self.lr)
            dist.send(weights, src)
            served[src] = served.get(src, 0) + 1
        unflatten_(weights, self.params)
        return served


class Client:
    def __init__(self, model, server=0):
        self.params = list(model.parameters())
        self.server = server

    def push_pull(self):
        dist.send(torch.cat([p.grad.reshape(-1) for p in self.params]), self.server)
        buf = torch.empty(sum(p.numel() for p in self.params))
        dist.recv(buf, self.server)
        unflatten_(buf, self.params)
