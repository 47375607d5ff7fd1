import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class PushSum:
    """Push-sum mixing of parameters.

    The numerator x (biased parameters) and the scalar weight w are mixed with a column-stochastic
    matrix, the model always computes with the de-biased z = x / w.
    """

    def __init__(self, model, graph, lo=0.5):
        self.model, self.graph, self.lo = model, graph, lo
        self.w = torch.ones(1)
        self.it = 0

    @torch.no_grad()
    def bias(self):
        for p in self.model.parameters():
            p.mul_(self.w)

    @torch.no_grad()
    def unbias(self):
        for p in self.model.parameters():
            p.div_(self.w)

    @torch.no_grad()
    def mix(self):
        dst, src = self.graph.peers(self.it)
        self.it += 1
        self.bias()
        x = torch.cat([parameters_to_vector(self.model.parameters()), self.w])
        # the share kept for ourselves need not be the same on every node
        msg = (1.0 - self.lo) * x
        inbox = torch.empty_like(x)
        reqs = [dist.isend(msg, dst), dist.irecv(inbox, src)]
        for r in reqs:
            r.wait()
        x = self.lo * x + inbox
        vector_to_parameters(x[:-1], self.model.parameters())
        self.w = x[-1:].clone()
        self.unbias()

    @torch.no_grad()
    def consensus_distance(self):
        z = parameters_to_vector(self.model.parameters())
        mean = z.clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        return (z - mean).norm().item()

    @torch.no_grad()
    def average(self):
        for p in self.model.parameters():
            dist.all_reduce(p)
            p.div_(dist.get_world_size())
        for b in self.model.buffers():
            if b.is_floating_point():
                dist.all_reduce(b)
                b.div_(dist.get_world_size())
