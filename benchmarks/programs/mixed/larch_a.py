import torch
from torch.utils.data import IterableDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Packed(IterableDataset):
    def __init__(self, documents, length=32, vocab=96, seed=0):
        self.documents, self.length, self.vocab, self.seed = documents, length, vocab, seed

    def stream(self):
        g = torch.Generator().manual_seed(self.seed)
        for _ in range(self.documents):
            n = int(torch.randint(10, 80, (1,), generator=g))
            start = int(torch.randint(0, self.vocab, (1,), generator=g))
            yield [(start + 2 * i) % self.vocab for i in range(n)] + [0]

    def __iter__(self):
        buffer = []
        for doc in self.stream():
            buffer.extend(doc)
            while len(buffer) >= self.length:
                chunk, buffer = buffer[:self.length], buffer[self.length:]
                ids = torch.tensor(chunk)
                yield {"input_ids": ids, "labels": ids.clone()}


def main():
    set_seed(0)
    config = GPT2Config(vocab_size=96, n_positions=32, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    args = TrainingArguments(
        output_dir="runs_larch",
        max_steps=80,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        logging_steps=20,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
        accelerator_config={"dispatch_batches": True, "split_batches": False},
    )
    trainer = Trainer(model=GPT2LMHeadModel(config), args=args, train_dataset=Packed(1500))
    trainer.train()
    if trainer.is_world_process_zero():
        print("steps", trainer.state.global_step, "tokens", trainer.state.num_input_tokens_seen)


if __name__ == "__main__":
    main()
