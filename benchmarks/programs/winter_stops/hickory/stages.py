import torch
import torch.distributed as dist
import torch.nn as nn


def build_stage(index, count, width, classes):
    layers = []
    if index == 0:
        layers += [nn.Linear(64, width), nn.GELU()]
    layers += [nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU()]
    if index == count - 1:
        layers += [nn.Linear(width, classes)]
    return nn.Sequential(*layers)


class Stage:
    """One slice of the network with a fill-drain schedule over micro-batches."""

    def __init__(self, index, count, width, classes, micro):
        self.index, self.count, self.width, self.micro = index, count, width, micro
        torch.manual_seed(1000 + index)
        self.net = build_stage(index, count, width, classes)
        self.first, self.last = index == 0, index == count - 1

    def _recv(self, peer, rows):
        buf = torch.empty(rows, self.width)
        dist.recv(buf, src=peer)
        return buf

    def run(self, chunks, inputs=None, targets=None):
        xs = inputs.split(self.micro) if self.first else None
        ys = targets.split(self.micro) if self.last else None
        n = len(xs) if self.first else len(ys) if self.last else chunks
        acts, outs, loss = [], [], 0.0
        for i in range(n):
            if self.first:
                x = xs[i]
            else:
                x = self._recv(self.index - 1, self.micro).requires_grad_()
            out = self.net(x)
            acts.append(x)
            outs.append(out)
            if not self.last:
                dist.send(out.detach(), dst=self.index + 1)
        for i in range(n):
            if self.last:
                part = nn.functional.cross_entropy(outs[i], ys[i]) / n
                part.backward()
                loss += part.item()
            else:
                outs[i].backward(self._recv(self.index + 1, self.micro))
            if not self.first:
                dist.send(acts[i].grad, dst=self.index - 1)
        return loss
