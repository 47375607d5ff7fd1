import torch
import torch.distributed as dist
import torch.nn.functional as F


def finalize_model_grads(model, dp_group, tp_group):
    """Data-parallel average, then the sum of replicated partial gradients over tp."""
    n = dist.get_world_size(dp_group)
    for p in model.parameters():
        if p.grad is not None and n > 1:
            dist.all_reduce(p.grad, group=dp_group)
            p.grad.div_(n)
    for name, p in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            dist.all_reduce(p.grad, group=tp_group)


class PolicyWorker:
    """Split train-step API: begin / micro-batch / finish."""

    def __init__(self, model, lr, dp_group, tp_group):
        self.model, self.dp_group, self.tp_group = model, dp_group, tp_group
        self.optim = torch.optim.AdamW(model.parameters(), lr=lr)
        self._micro = 0

    def begin_train_step(self):
        self.optim.zero_grad()
        self._micro = 0

    def train_microbatch(self, ids):
        logits = self.model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        self._micro += 1
        return loss.detach()

    def _finish_grad_sync(self):
        n = dist.get_world_size(self.dp_group)
        for p in self.model.parameters():
            p.grad.div_(self._micro)
            if n > 1:
                dist.all_reduce(p.grad, group=self.dp_group)
                p.grad.div_(n)

    def finish_train_step(self):
        self._finish_grad_sync()
        self.optim.step()

    def train(self, ids):
        """One-call variant of the three methods above, for a single micro-batch."""
        self.optim.zero_grad()
        logits = self.model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        finalize_model_grads(self.model, self.dp_group, self.tp_group)
        self.optim.step()
        return loss.detach()
