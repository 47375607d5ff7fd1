import functools
import io
import time

import torch
import torch.distributed as dist


def main_process(fn):
    @functools.wraps(fn)
    def inner(*a, **kw):
        return fn(*a, **kw) if dist.get_rank() == 0 else None
    return inner


class Hook:
    def after_step(self, t):
        pass

    def after_epoch(self, t):
        pass


class Meter(Hook):
    def __init__(self, every):
        self.every, self.acc = every, torch.zeros(2)

    def after_step(self, t):
        self.acc += torch.tensor([t.loss, 1.0])
        if t.step % self.every == 0:
            dist.all_reduce(self.acc)
            self.show(t.step, self.acc)
            self.acc = torch.zeros(2)

    @main_process
    def show(self, step, acc):
        print(f"step {step}: loss {acc[0] / acc[1]:.4f} over {int(acc[1])} steps", flush=True)


class Snapshot(Hook):
    """Main process exports to the archive (which takes its time), then all go on."""

    def __init__(self, every, seconds):
        self.every, self.seconds = every, seconds

    @main_process
    def export(self, t):
        buf = io.BytesIO()
        torch.save(t.model.module.state_dict(), buf)
        time.sleep(self.seconds)
        print(f"exported {buf.tell()} bytes", flush=True)

    def after_epoch(self, t):
        if (t.epoch + 1) % self.every == 0:
            self.export(t)
            dist.barrier()


class Sampler(Hook):
    """A look at some predictions, on the last process only, without any communication."""

    def after_epoch(self, t):
        if dist.get_rank() != dist.get_world_size() - 1:
            return
        with torch.no_grad():
            y = t.model.module(torch.linspace(-1, 1, 4)[:, None])
        print("sample", [round(v, 3) for v in y.flatten().tolist()], flush=True)
