import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

VOCAB, WIDTH = 1500, 48


def build_stage(rank, world):
    if rank == 0:
        return nn.Sequential(nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh())
    if rank == world - 1:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, VOCAB))
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def entropy(logits):
    logp = F.log_softmax(logits, dim=-1)
    return -(logp.exp() * logp).sum(-1).mean()


class Engine:
    """One pipeline stage with its optimizer; the last stage keeps the metrics of each micro-batch."""

    def __init__(self, rank, world, micro_batches, lr):
        self.first, self.last = rank == 0, rank == world - 1
        self.module = build_stage(rank, world)
        stage = PipelineStage(self.module, rank, world, torch.device("cpu"))
        self.schedule = ScheduleGPipe(stage, micro_batches, loss_fn=self.loss_fn)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=lr)
        self.forward_data = []

    def loss_fn(self, logits, target):
        logits, target = logits.flatten(0, 1), target.flatten()
        loss = F.cross_entropy(logits, target)
        self.forward_data.append({"loss": loss.detach(), "entropy": entropy(logits)})
        return loss

    def train_step(self, ids, target):
        self.optimizer.zero_grad()
        if self.first:
            self.schedule.step(ids)
        elif self.last:
            self.schedule.step(target=target)
        else:
            self.schedule.step()
        self.optimizer.step()

    def summary(self):
        names = ("loss", "entropy")
        return {name: sum(row[name].item() for row in self.forward_data) / len(self.forward_data) for name in names}
