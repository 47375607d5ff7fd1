"""LoRA instruction tuning of a frozen base model, data parallel."""
import argparse
import json
import logging
import os
import time

import torch
import torch.distributed as dist

from llama import MiniLlama
from lora import AdapterReducer, LoraConfig, inject

DEFAULTS = {
    "steps": 100, "batch_size": 6, "seq_len": 32, "lr": 2e-3, "weight_decay": 0.0, "warmup": 10,
    "max_grad_norm": 1.0, "seed": 42, "log_every": 10,
    "lora": {"r": 8, "alpha": 16},
}


class InstructionData:
    """Prompt (masked) followed by a response which is a rotation of it."""

    def __init__(self, cfg, rank, vocab=160):
        self.cfg, self.vocab = cfg, vocab
        self.gen = torch.Generator().manual_seed(cfg["seed"] * 31 + rank)

    def __iter__(self):
        half = self.cfg["seq_len"] // 2
        while True:
            start = torch.randint(0, self.vocab, (self.cfg["batch_size"], 1), generator=self.gen)
            stride = torch.randint(1, 4, (self.cfg["batch_size"], 1), generator=self.gen)
            prompt = (start + stride * torch.arange(half)) % self.vocab
            response = (prompt + 7) % self.vocab
            seq = torch.cat([prompt, response, response[:, :1]], 1)
            labels = seq[:, 1:].clone()
            labels[:, :half - 1] = -100
            yield seq[:, :-1], labels


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", help="json file with overrides")
    ap.add_argument("--steps", type=int)
    ap.add_argument("--out", default=f"/tmp/lora-{os.getppid()}")
    args = ap.parse_args()
    cfg = dict(DEFAULTS)
    if args.config:
        cfg.update(json.load(open(args.config)))
    if args.steps:
        cfg["steps"] = args.steps

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(cfg["seed"])
    model = MiniLlama()
    lora_cfg = LoraConfig(**cfg["lora"])
    adapters = inject(model, lora_cfg, cfg["seed"])
    reducer = AdapterReducer(adapters, lora_cfg)
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=cfg["lr"], weight_decay=cfg["weight_decay"])
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / cfg["warmup"]))
    logging.info("%d adapters, %d trainable parameters", len(adapters), sum(p.numel() for p in params))

    t0 = time.time()
    for step, (ids, labels) in zip(range(cfg["steps"]), InstructionData(cfg, rank)):
        loss = model(ids, labels)
        loss.backward()
        reducer.reduce()
        torch.nn.utils.clip_grad_norm_(params, cfg["max_grad_norm"])
        opt.step()
        sched.step()
        opt.zero_grad(set_to_none=True)
        if step % cfg["log_every"] == 0:
            avg = loss.detach().clone()
            dist.all_reduce(avg)
            logging.info("step %d loss %.4f lr %.2e %.1fs", step, avg.item() / world, sched.get_last_lr()[0],
                         time.time() - t0)
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save({n: {"A": m.lora_A.detach(), "B": m.lora_B.detach()} for n, m in adapters.items()},
                   os.path.join(args.out, "adapter.pt"))
        logging.info("adapter written to %s", args.out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
