"""Top-k gradient exchange that remembers what it has not sent yet."""
import torch
import torch.distributed as dist


class TopKExchange:
    def __init__(self, params, share):
        self.params = [p for p in params if p.requires_grad]
        self.share = share
        self.world = dist.get_world_size()
        self.unsent = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def __call__(self):
        for p, memory in zip(self.params, self.unsent):
            memory.add_(p.grad)
            keep = max(1, int(self.share * memory.numel()))
            index = memory.abs().flatten().topk(keep).indices
            message = torch.zeros(memory.numel())
            message[index] = memory.flatten()[index]
            memory.sub_(message.view_as(memory))
            dist.all_reduce(message)
            p.grad.copy_(message.view_as(p) / self.world)

    def state_dict(self):
        return {"share": self.share, "unsent": [m.clone() for m in self.unsent]}

    def load_state_dict(self, state):
        self.share = state["share"]
        for memory, saved in zip(self.unsent, state["unsent"]):
            memory.copy_(saved)
