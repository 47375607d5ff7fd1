import logging
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

PUSH, BYE = 0.0, 1.0
HEAD = 3        # kind, version the gradient was taken at, loss


def flatten(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def load_flat(params, flat):
    for p, c in zip(params, flat.split([p.numel() for p in params])):
        p.data.copy_(c.view_as(p))


class Server:
    """Takes gradients from whoever comes first, answers with fresh weights."""

    def __init__(self, model, lr, momentum, evaluate):
        self.params = list(model.parameters())
        self.flat = flatten(self.params)
        self.velocity = torch.zeros_like(self.flat)
        self.lr, self.momentum, self.evaluate = lr, momentum, evaluate

    def serve(self, n_workers):
        inbox = torch.empty(HEAD + self.flat.numel())
        version, alive, counts, stale = 0, n_workers, {}, {}
        while alive:
            src = dist.recv(inbox)
            if inbox[0].item() == BYE:
                alive -= 1
                continue
            lag = version - int(inbox[1].item())
            counts[src] = counts.get(src, 0) + 1
            stale[lag] = stale.get(lag, 0) + 1
            self.velocity.mul_(self.momentum).add_(inbox[HEAD:], alpha=1.0 / (1 + lag))
            self.flat.add_(self.velocity, alpha=-self.lr)
            version += 1
            dist.send(torch.cat([torch.tensor([float(version)]), self.flat]), dst=src)
            if version % 100 == 0:
                load_flat(self.params, self.flat)
                logging.info("version %d loss %.4f accuracy %.4f", version, inbox[2].item(), self.evaluate())
        load_flat(self.params, self.flat)
        logging.info("pushes by worker %s, staleness %s", dict(sorted(counts.items())), dict(sorted(stale.items())))
        return version


class Worker:
    def __init__(self, model, draw, pause):
        self.model, self.draw, self.pause = model, draw, pause
        self.params = list(model.parameters())

    def work(self, seconds, min_pushes):
        reply = torch.empty(1 + sum(p.numel() for p in self.params))
        version, pushes, until = 0, 0, time.monotonic() + seconds
        while time.monotonic() < until or pushes < min_pushes:
            x, y = self.draw()
            loss = F.cross_entropy(self.model(x), y)
            grads = torch.autograd.grad(loss, self.params)
            time.sleep(self.pause)
            dist.send(torch.cat([torch.tensor([PUSH, float(version), loss.item()]), flatten(grads)]), dst=0)
            dist.recv(reply, src=0)
            version = int(reply[0].item())
            load_flat(self.params, reply[1:])
            pushes += 1
        bye = torch.zeros(HEAD + reply.numel() - 1)
        bye[0] = BYE
        dist.send(bye, dst=0)
        return pushes
