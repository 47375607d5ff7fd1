import functools
import time

import torch
import torch.distributed as dist


def rank_zero_only(fn):
    @functools.wraps(fn)
    def wrapped(*args, **kwargs):
        if dist.get_rank() == 0:
            return fn(*args, **kwargs)
        return None
    return wrapped


class Callback:
    def on_fit_start(self, trainer):
        pass

    def on_epoch_end(self, trainer, metrics):
        pass

    def on_fit_end(self, trainer):
        pass


class Throughput(Callback):
    def on_fit_start(self, trainer):
        self.t0 = time.time()
        trainer.tokens_per_epoch  # every process takes part in the count

    @rank_zero_only
    def on_epoch_end(self, trainer, metrics):
        seen = trainer.tokens_per_epoch * (trainer.epoch + 1)
        metrics["tok/s"] = seen / (time.time() - self.t0)


class ConsoleLogger(Callback):
    @rank_zero_only
    def on_epoch_end(self, trainer, metrics):
        line = "  ".join(f"{k}={v:.4g}" for k, v in metrics.items())
        print(f"epoch {trainer.epoch}: {line}", flush=True)


class LossAverage(Callback):
    def on_epoch_end(self, trainer, metrics):
        t = torch.tensor([metrics["loss"]])
        dist.all_reduce(t)
        metrics["loss"] = t.item() / dist.get_world_size()
