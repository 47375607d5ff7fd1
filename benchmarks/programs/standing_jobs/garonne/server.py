"""Parameter server which applies one update per round of gradients."""
import logging
import threading

import torch
import torch.distributed.rpc as rpc

from net import build

log = logging.getLogger("server")


class Server:
    def __init__(self, trainers, lr, seed):
        torch.manual_seed(seed)
        self.model = build()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.trainers = trainers
        self.lock = threading.Lock()
        self.arrived = 0
        self.updates = 0
        self.round = torch.futures.Future()
        for p in self.model.parameters():
            p.grad = torch.zeros_like(p)

    def weights(self):
        return [p.detach().clone() for p in self.model.parameters()]

    def _accumulate(self, grads):
        for p, g in zip(self.model.parameters(), grads):
            p.grad += g / self.trainers

    def _finish_round(self):
        done, self.round = self.round, torch.futures.Future()
        self.opt.step()
        self.opt.zero_grad(set_to_none=False)
        self.arrived = 0
        self.updates += 1
        done.set_result(self.weights())

    @staticmethod
    @rpc.functions.async_execution
    def push(ref, grads):
        self = ref.local_value()
        with self.lock:
            self._accumulate(grads)
            self.arrived += 1
            answer = self.round
            if self.arrived == self.trainers:
                self._finish_round()
        return answer

    @staticmethod
    def pull(ref):
        return ref.local_value().weights()

    @staticmethod
    def leave(ref, name):
        self = ref.local_value()
        log.info("%s is done after %d updates", name, self.updates)
        return self.updates
