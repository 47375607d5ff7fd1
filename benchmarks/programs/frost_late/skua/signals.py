import signal

import torch
import torch.distributed as dist


class StopVote:
    def __init__(self, names=("SIGUSR1", "SIGTERM")):
        self.mine = 0
        for n in names:
            signal.signal(getattr(signal, n), self.catch)

    def catch(self, signum, frame):
        self.mine = signum

    def collect(self):
        vote = torch.tensor([self.mine])
        dist.all_reduce(vote, op=dist.ReduceOp.MAX)
        return int(vote)
