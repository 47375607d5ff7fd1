import argparse
import logging

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from model import GPT

log = logging.getLogger("pretrain")


class TrainState(Stateful):
    def __init__(self, model, opt, gen):
        self.model, self.opt, self.gen, self.step = model, opt, gen, 0

    def state_dict(self):
        m, o = get_state_dict(self.model, self.opt)
        return {"model": m, "opt": o, "step": torch.tensor(self.step), f"rng{dist.get_rank()}": self.gen.get_state()}

    def load_state_dict(self, sd):
        set_state_dict(self.model, self.opt, model_state_dict=sd["model"], optim_state_dict=sd["opt"])
        self.step = int(sd["step"])
        self.gen.set_state(sd[f"rng{dist.get_rank()}"])


def sample(bsz, ctx, gen):
    start = torch.randint(0, 32, (bsz, 1), generator=gen)
    stride = torch.randint(1, 7, (bsz, 1), generator=gen)
    s = (start + stride * torch.arange(ctx + 1)) % 32
    return s[:, :-1], s[:, 1:]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--until", type=int, default=60)
    ap.add_argument("--save-every", type=int, default=30)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--dir", default="ckpt")
    ap.add_argument("--resume-step", type=int, default=0)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(name)s %(message)s")
    log.setLevel(logging.INFO if rank == 0 else logging.ERROR)
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = GPT()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(30 + rank)
    state = TrainState(model, opt, gen)
    if args.resume_step:
        dcp.load({"app": state}, checkpoint_id=f"{args.dir}/step{args.resume_step}")
        log.info("resumed at %d", state.step)

    ckpt_group = dist.new_group(backend="gloo")
    pending = None
    while state.step < args.until:
        x, y = sample(args.batch, 48, gen)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        state.step += 1
        if state.step % 10 == 0:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            log.info("step %d loss %.4f norm %.2f", state.step, shown.item() / world, norm.full_tensor().item())
        if state.step % args.save_every == 0:
            if pending is not None:
                pending.result()
            pending = dcp.async_save({"app": state}, checkpoint_id=f"{args.dir}/step{state.step}",
                                     process_group=ckpt_group)
    if pending is not None:
        pending.result()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
