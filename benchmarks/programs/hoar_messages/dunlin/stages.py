import torch
import torch.distributed as dist
import torch.nn as nn


def build_stage(rank, dim, hidden, classes):
    if rank == 0:
        return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
    return nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes))


class FrontStage:
    """First half of the network; owns the inputs."""

    def __init__(self, module, micro, peer):
        self.module, self.micro, self.peer = module, micro, peer

    def run_batch(self, x):
        saved = []
        for chunk in x.split(self.micro):
            act = self.module(chunk)
            dist.send(act.detach().contiguous(), self.peer)
            saved.append(act)
        for act in saved:
            grad = torch.empty_like(act)
            dist.recv(grad, self.peer)
            act.backward(grad)
        return None


class BackStage:
    """Second half of the network; owns the labels and the loss."""

    def __init__(self, module, micro, peer, hidden):
        self.module, self.micro, self.peer, self.hidden = module, micro, peer, hidden
        self.loss_fn = nn.CrossEntropyLoss(reduction="sum")

    def run_batch(self, y):
        n_micro = len(y) // self.micro
        inputs, losses = [], []
        for i in range(n_micro):
            target = y[i * self.micro:(i + 1) * self.micro]
            buf = torch.empty(len(target), self.hidden)
            dist.recv(buf, self.peer)
            buf.requires_grad_()
            losses.append(self.loss_fn(self.module(buf), target) / len(y))
            inputs.append(buf)
        for buf, loss in zip(inputs, losses):
            loss.backward()
            dist.send(buf.grad, self.peer)
        return torch.stack(losses).sum().item()
