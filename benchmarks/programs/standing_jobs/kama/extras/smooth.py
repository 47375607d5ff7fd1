import torch

from registry import hook


@hook("ema")
class Ema:
    """Exponential average of the weights, kept beside the model."""

    def __init__(self, decay=0.95, **kwargs):
        self.decay = decay
        self.shadow = None

    @torch.no_grad()
    def after_step(self, trainer):
        now = [p.detach() for p in trainer.model.parameters()]
        if self.shadow is None:
            self.shadow = [p.clone() for p in now]
        for s, p in zip(self.shadow, now):
            s.lerp_(p, 1 - self.decay)

    def after_epoch(self, trainer, epoch):
        gap = sum((s - p.detach()).norm() for s, p in zip(self.shadow, trainer.model.parameters()))
        trainer.say("epoch %d distance to average %.4f", epoch, gap)
