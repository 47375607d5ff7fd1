import torch
import torch.distributed as dist
from torch.nn import functional as F


@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    logits = model(x)
    return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()


def fit(model, loader, sampler, optimizer, valid, epochs, eval_every, log):
    step = 0
    model.train()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % eval_every == 0:
                if dist.get_rank() == 0:
                    vloss, acc = evaluate(model.module, *valid)
                    log.info("step %d train %.4f valid %.4f acc %.3f", step, loss.item(), vloss, acc)
                dist.barrier()
