import logging

import torch
import torch.distributed as dist
from torch.nn import functional as F

from layers import Tagger, finalize_grads, seed_everything

CFG = dict(vocab=60, tags=7, width=24, hidden=48, depth=2, seq=32, batch=8,
           steps=40, lr=5e-3, seed=17)


def sample(cfg, g, mapping):
    tokens = torch.randint(0, cfg["vocab"], (cfg["batch"], cfg["seq"]), generator=g)
    ramp = torch.arange(cfg["seq"]).expand_as(tokens)
    tags = (mapping[tokens] + (ramp >= cfg["seq"] // 2).long()) % cfg["tags"]
    return tokens, tags


def own_part(t, rank, world):
    return t.chunk(world, dim=1)[rank]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(format="%(message)s",
                        level=logging.INFO if rank == 0 else logging.ERROR)
    torch.manual_seed(CFG["seed"])
    model = Tagger(CFG["vocab"], CFG["tags"], CFG["width"], CFG["hidden"], CFG["depth"], world)
    seed_everything(model, CFG["seed"])
    opt = torch.optim.AdamW(model.parameters(), lr=CFG["lr"])
    g = torch.Generator().manual_seed(CFG["seed"])
    mapping = torch.randint(0, CFG["tags"], (CFG["vocab"],), generator=g)

    for step in range(CFG["steps"]):
        tokens, tags = sample(CFG, g, mapping)
        total = tags.numel()
        logits = model(own_part(tokens, rank, world))
        loss = F.cross_entropy(logits.flatten(0, 1), own_part(tags, rank, world).flatten(),
                               reduction="sum") / total
        opt.zero_grad()
        loss.backward()
        finalize_grads(model)
        opt.step()
        if step % 8 == 0:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            logging.info("step %3d loss %.4f", step, shown.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
