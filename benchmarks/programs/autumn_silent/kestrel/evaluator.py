import logging

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

log = logging.getLogger("eval")


class SnapshotSender:
    """Ships weights to the evaluator without waiting for the evaluation."""

    def __init__(self, model, dst):
        self.model, self.dst = model, dst
        self.pending = None

    def send(self):
        self.flush()
        buf = parameters_to_vector(self.model.parameters()).detach().clone()
        self.pending = (dist.isend(buf, self.dst), buf)

    def flush(self):
        if self.pending is not None:
            self.pending[0].wait()
            self.pending = None


def evaluation_loop(model, val_x, val_y, snapshots, every, src=0):
    buf = torch.empty_like(parameters_to_vector(model.parameters()))
    scores = torch.zeros(snapshots)
    model.eval()
    for i in range(snapshots):
        dist.recv(buf, src)
        with torch.no_grad():
            vector_to_parameters(buf, model.parameters())
            logits = torch.cat([model(part) for part in val_x.split(128)])
        scores[i] = (logits.argmax(1) == val_y).float().mean()
        log.info("snapshot of step %d: accuracy %.4f", (i + 1) * every, scores[i])
    dist.send(scores, src)
