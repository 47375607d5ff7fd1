import torch
import torch.distributed as dist
import torch.nn.functional as F


@torch.no_grad()
def run_eval(model, loader):
    model.eval()
    total = torch.zeros(2)
    batches = iter(loader)
    while True:
        batch = next(batches, None)
        more = torch.tensor(int(batch is not None))
        dist.all_reduce(more, op=dist.ReduceOp.MIN)
        if not more.item():
            break
        x, y = batch
        logits = model(x)
        total[0] += F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")
        total[1] += y.numel()
    dist.all_reduce(total)
    model.train()
    return (total[0] / total[1]).item()
