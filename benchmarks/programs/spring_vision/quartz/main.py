"""Class-conditional diffusion with accelerate; survives preemption by resuming from the last checkpoint."""
import argparse
import logging
import tempfile
import time

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, set_seed
from torchdata.stateful_dataloader import StatefulDataLoader

from checkpoint import Checkpointer
from diffusion import Denoiser, Schedule
from stream import SpriteStream

log = logging.getLogger("diffusion")


class Preempted(Exception):
    pass


def train(acc, args, out, preempt_at=None):
    set_seed(args.seed, device_specific=True)
    stream = SpriteStream(args.packs, args.per_pack, acc.process_index, acc.num_processes, seed=args.seed)
    loader = StatefulDataLoader(stream, batch_size=args.batch_size, num_workers=0)
    model = Denoiser()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    model, opt = acc.prepare(model, opt)
    ckpt = Checkpointer(acc, out, model, opt, sched, loader)
    step = ckpt.resume()
    if acc.is_main_process:
        log.info("%s at step %d", "resumed" if step else "started", step)

    schedule, t0, meter = Schedule(), time.time(), 0.0
    seen = torch.zeros(args.packs * args.per_pack)
    batches = iter(loader)
    while step < args.steps:
        x, y, ids = next(batches)
        loss = schedule.loss(model, x, y)
        opt.zero_grad()
        acc.backward(loss)
        acc.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        step += 1
        seen[ids] += 1
        meter += loss.item()
        if step % args.save_every == 0:
            ckpt.save(step)
            mean = acc.reduce(torch.tensor(meter / args.save_every), "mean")
            if acc.is_main_process:
                log.info("step %d loss %.4f (%.1fs)", step, mean, time.time() - t0)
            meter = 0.0
        if step == preempt_at:
            raise Preempted(step)
    return seen


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=360)
    ap.add_argument("--save-every", type=int, default=40)
    ap.add_argument("--preempt-at", type=int, default=130)
    ap.add_argument("--packs", type=int, default=48)
    ap.add_argument("--per-pack", type=int, default=160)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=5)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    log.setLevel(logging.INFO)
    acc = Accelerator(cpu=True)
    out = broadcast_object_list([args.out or tempfile.mkdtemp(prefix="sprites-")])[0]
    try:
        train(acc, args, out, args.preempt_at)
    except Preempted as e:
        log.info("rank %d preempted at step %s", acc.process_index, e)
        acc.free_memory()
        train(acc, args, out)
    acc.end_training()


if __name__ == "__main__":
    main()
