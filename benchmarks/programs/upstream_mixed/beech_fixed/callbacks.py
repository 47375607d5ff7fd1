import torch
import torch.distributed as dist


class Controller:
    """The user interface talks to the first process; commands come in between two steps."""

    def __init__(self, commands):
        self.commands = commands

    def poll(self, step):
        return self.commands.get(step)

    def on_batch_end(self, trainer):
        lr = torch.zeros(1)
        if trainer.is_global_zero:
            message = self.poll(trainer.step)
            if message is not None and message["command"] == "stop":
                trainer.should_stop = True
            elif message is not None and message["command"] == "set_lr":
                lr[0] = message["value"]
        dist.broadcast(lr, src=0)
        if lr.item() > 0:
            trainer.set_lr(lr.item())
        stop = torch.tensor(int(trainer.should_stop))
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        trainer.should_stop = bool(stop.item())


class LossPrinter:
    def __init__(self, every):
        self.every = every

    def on_batch_end(self, trainer):
        if trainer.is_global_zero and trainer.step % self.every == 0:
            print(f"step {trainer.step} loss {trainer.last_loss:.4f}", flush=True)
