"""Task farm over point-to-point messages: rank 0 hands out work, the others compute."""
import collections

import torch
import torch.distributed as dist

STOP = -1


class Farm:
    def __init__(self, n_features):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.n_features = n_features

    # rank 0
    def drive(self, tasks):
        queue = collections.deque(enumerate(tasks))
        results = {}
        for worker in range(1, self.world):
            self._hand_out(queue, worker)
        while len(results) < len(tasks):
            reply = torch.zeros(2)
            worker = dist.recv(reply)
            results[int(reply[0])] = reply[1].item()
            if len(results) == len(tasks):
                break
            self._hand_out(queue, worker)
        return [results[i] for i in range(len(tasks))]

    def _hand_out(self, queue, worker):
        msg = torch.zeros(1 + self.n_features)
        if queue:
            index, task = queue.popleft()
            msg[0] = index
            msg[1:] = torch.tensor(task)
        else:
            msg[0] = STOP
        dist.send(msg, worker)

    # other ranks
    def serve(self, fn):
        done = 0
        while True:
            msg = torch.zeros(1 + self.n_features)
            dist.recv(msg, src=0)
            if msg[0] == STOP:
                return done
            score = fn(msg[1:].tolist())
            dist.send(torch.tensor([msg[0].item(), score]), dst=0)
            done += 1
