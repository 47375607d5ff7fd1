import torch
import torch.distributed as dist

from registry import hook


@hook("grad_spread")
class GradSpread:
    """How differently the ranks see the data: spread of the loss over the ranks."""

    def __init__(self, window=20, **kwargs):
        self.window = window
        self.values = []

    def after_step(self, trainer):
        self.values.append(trainer.last_loss)

    def after_epoch(self, trainer, epoch):
        mine = torch.tensor(self.values[-self.window:]).mean()
        parts = [torch.zeros(()) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine)
        both = torch.stack(parts)
        trainer.say("epoch %d loss over ranks: mean %.4f spread %.4f", epoch,
                    both.mean().item(), (both.max() - both.min()).item())
        self.values.clear()
