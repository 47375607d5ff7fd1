import logging

import torch

log = logging.getLogger("monitor")


class TrainingMonitor:
    """Smoothed loss and predictive entropy of the first worker."""

    def __init__(self, every, decay=0.98):
        self.every = every
        self.decay = decay
        self.loss = None
        self.entropy = None

    def _smooth(self, old, new):
        return new if old is None else self.decay * old + (1 - self.decay) * new

    def update(self, step, logits, loss):
        logp = torch.log_softmax(logits, dim=-1)
        entropy = -(logp.exp() * logp).sum(-1).mean()
        self.loss = self._smooth(self.loss, loss.item())
        self.entropy = self._smooth(self.entropy, entropy)
        if step % self.every == 0:
            log.info("step %d loss %.4f entropy %.4f", step, self.loss, self.entropy)
