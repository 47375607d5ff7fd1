import torch
import torch.distributed as dist


class Roles:
    """The last rank judges, all others train. Groups are made by every rank, in the same order."""

    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.judge = self.world - 1
        self.train_group = dist.new_group(list(range(self.judge)))
        self.publish_group = dist.new_group(list(range(self.world)))

    @property
    def is_judge(self):
        return self.rank == self.judge


@torch.no_grad()
def publish(model, roles):
    for p in model.parameters():
        dist.broadcast(p.data, src=0, group=roles.publish_group)


def report(score, roles):
    """The judge sends its score back to the first trainer."""
    box = torch.tensor([score])
    if roles.is_judge:
        dist.send(box, dst=0)
    elif roles.rank == 0:
        dist.recv(box, src=roles.judge)
    return box.item()
