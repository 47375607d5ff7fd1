import os

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class CodeChunks(Dataset):
    def __init__(self, n=1920, length=64, vocab=512):
        g = torch.Generator().manual_seed(5)
        start = torch.randint(0, vocab, (n, 1), generator=g)
        stride = torch.randint(1, 7, (n, 1), generator=g)
        self.ids = (start + stride * torch.arange(length)) % vocab

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


class EntropyTrainer(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.entropy_trace = []

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(**inputs)
        loss = outputs.loss
        logp = torch.log_softmax(outputs.logits, dim=-1)
        entropy = -(logp.exp() * logp).sum(-1).mean()
        self.entropy_trace.append(entropy.detach())
        return (loss, outputs) if return_outputs else loss


class EntropyReport(TrainerCallback):
    def __init__(self):
        self.trainer = None

    def on_log(self, args, state, control, logs=None, **kwargs):
        if self.trainer and self.trainer.entropy_trace and state.is_world_process_zero:
            recent = torch.stack(self.trainer.entropy_trace[-10:]).mean()
            print(f"[{state.global_step}] entropy {float(recent):.3f}", flush=True)


def main():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=512, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    args = TrainingArguments(
        output_dir="runs_quarry",
        per_device_train_batch_size=8,
        max_steps=100,
        learning_rate=1e-3,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
        dataloader_num_workers=0,
    )
    report = EntropyReport()
    trainer = EntropyTrainer(model=model, args=args, train_dataset=CodeChunks(), callbacks=[report])
    report.trainer = trainer
    trainer.train()
    if trainer.is_world_process_zero():
        print("mean entropy", float(torch.stack(trainer.entropy_trace).mean()))


if __name__ == "__main__":
    main()
