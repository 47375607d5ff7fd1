import argparse
import math

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed


class Arithmetic(Dataset):
    """Digit strings 'a+b=c' with padding after the answer."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = torch.randint(0, 100, (n, 2), generator=g).tolist()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        a, b = self.rows[i]
        ids = [int(c) for c in f"{a:02d}"] + [10] + [int(c) for c in f"{b:02d}"] + [11] + [int(c) for c in str(a + b)[::-1]] + [12]
        mask = [1] * len(ids) + [0] * (10 - len(ids))
        labels = [-100] * 6 + ids[6:] + [-100] * (10 - len(ids))
        ids = ids + [13] * (10 - len(ids))
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "labels": torch.tensor(labels)}


class Echo(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics=None, **kw):
        if state.is_world_process_zero:
            print(f"step {state.global_step} eval_loss {metrics['eval_loss']:.4f} ppl {math.exp(metrics['eval_loss']):.2f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--max-steps", type=int, default=60)
    ap.add_argument("--schedule-steps", type=int, default=120)
    ap.add_argument("--output", default="out")
    ap.add_argument("--resume", action="store_true")
    args = ap.parse_args()
    set_seed(11)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=14, n_positions=16, n_embd=64, n_layer=2, n_head=4, bos_token_id=12,
                                       eos_token_id=12, pad_token_id=13, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min((s + 1) / 10, max(0.05, 1 - s / args.schedule_steps)))
    targs = TrainingArguments(
        output_dir=args.output, max_steps=args.max_steps, per_device_train_batch_size=16, per_device_eval_batch_size=64,
        gradient_accumulation_steps=4, max_grad_norm=1.0, logging_steps=20, eval_strategy="steps", eval_steps=30,
        save_strategy="steps", save_steps=30, save_total_limit=2, use_cpu=True, ddp_backend="gloo", report_to=[],
        disable_tqdm=True, seed=11, dataloader_num_workers=0, ddp_find_unused_parameters=False)
    trainer = Trainer(model=model, args=targs, train_dataset=Arithmetic(6000, 1), eval_dataset=Arithmetic(512, 2),
                      optimizers=(opt, sched), callbacks=[Echo()])
    trainer.train(resume_from_checkpoint=True if args.resume else None)
    trainer.save_model(f"{args.output}/final")
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
