"""ReLoRA with the Hugging Face Trainer: merge, re-initialise, warm restart."""
import argparse
import math
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from curriculum import CurriculumSampler
from lora import LoRALinear


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o, self.up, self.down = LoRALinear(d, 3 * d), LoRALinear(d, d), LoRALinear(d, 4 * d), LoRALinear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class TinyLM(nn.Module):
    def __init__(self, vocab=40, d=96, layers=2, ctx=40):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.blocks = nn.ModuleList(Block(d, 4) for _ in range(layers))
        self.head = nn.Linear(d, vocab)
        self.pos.requires_grad_(False)            # positions stay as they are

    def forward(self, input_ids, labels=None):
        x = self.tok(input_ids) + self.pos.weight[: input_ids.shape[1]]
        for b in self.blocks:
            x = b(x)
        logits = self.head(x)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


class Walks(Dataset):
    """Random walks on a ring; the larger the stride range, the harder the sample."""

    def __init__(self, n, seed, length=40, vocab=40):
        g = torch.Generator().manual_seed(seed)
        self.level = torch.randint(1, 6, (n,), generator=g)
        self.data = []
        for lv in self.level.tolist():
            cycle = torch.randint(1, lv + 1, (2,), generator=g).repeat(length // 2)
            start = torch.randint(vocab, (1,), generator=g)
            self.data.append((start + cycle.cumsum(0)) % vocab)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return {"input_ids": self.data[i], "labels": self.data[i].clone()}


class ReLoRACallback(TrainerCallback):
    def __init__(self, every, sampler, seed=0):
        self.every, self.sampler = every, sampler
        self.gen = torch.Generator().manual_seed(seed)       # the new factors are alike on all the processes

    def on_epoch_begin(self, args, state, control, **kw):
        self.sampler.set_epoch(int(state.epoch or 0))

    def on_step_end(self, args, state, control, model=None, optimizer=None, **kw):
        if state.global_step % self.every or state.global_step >= state.max_steps:
            return
        inner = getattr(optimizer, "optimizer", optimizer)
        for m in model.modules():
            if isinstance(m, LoRALinear):
                m.merge_and_restart(self.gen)
                for p in (m.a, m.b):
                    inner.state.pop(p, None)                 # moments belong to the old factors
        if state.is_world_process_zero:
            print(f"step {state.global_step}: merged", flush=True)


class CurriculumTrainer(Trainer):
    def __init__(self, *a, sampler=None, **kw):
        super().__init__(*a, **kw)
        self.curriculum = sampler

    def get_train_dataloader(self):
        # the sampler splits by itself, so the loader is not handed to accelerate
        return DataLoader(self.train_dataset, self.args.per_device_train_batch_size, sampler=self.curriculum,
                          collate_fn=self.data_collator, drop_last=True)


def restarts(cycle, warm, total):
    def fn(step):
        pos = step % cycle
        ramp = min(1.0, (pos + 1) / warm)
        return ramp * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / total))))
    return fn


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--max-steps", type=int, default=120)
    ap.add_argument("--cycle", type=int, default=30)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    targs = TrainingArguments(output_dir=args.out or tempfile.mkdtemp(), use_cpu=True, ddp_backend="gloo", max_steps=args.max_steps,
                              per_device_train_batch_size=args.batch_size, per_device_eval_batch_size=64, learning_rate=args.lr,
                              logging_steps=15, eval_strategy="steps", eval_steps=30, save_strategy="no", report_to=[],
                              disable_tqdm=True, seed=3, ddp_find_unused_parameters=False)
    train, val = Walks(1400, 1), Walks(150, 2)
    torch.manual_seed(3)
    model = TinyLM()
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=args.lr)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, restarts(args.cycle, 6, args.max_steps))
    sampler = CurriculumSampler(train.level, targs.process_index, targs.world_size)
    trainer = CurriculumTrainer(model=model, args=targs, train_dataset=train, eval_dataset=val, optimizers=(opt, sched),
                                sampler=sampler, callbacks=[ReLoRACallback(args.cycle, sampler)])
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
