import torch.distributed as dist


class Phases:
    def __init__(self, switch_at):
        self.switch_at, self.weighted = switch_at, False

    def at(self, step):
        self.weighted = step >= self.switch_at

    def objective(self, err, weight):
        if not self.weighted:
            return err.mean()
        total = weight.sum()
        dist.all_reduce(total)
        return (err * weight).sum() / total

    def reduce(self, bucket):
        buf = bucket.buffer()
        if not self.weighted:
            buf.div_(dist.get_world_size())
        fut = dist.all_reduce(buf, async_op=True).get_future()
        return fut.then(lambda f: f.value()[0])
