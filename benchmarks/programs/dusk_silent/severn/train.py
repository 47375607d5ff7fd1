"""Supervised fine-tuning of a small decoder with the HF Trainer.

    torchrun --nproc_per_node 2 train.py
"""
import argparse
import tempfile

from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments, set_seed

from data import Dialogues, PadCollator
from trainer import ZLossTrainer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=1200)
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--lr", type=float, default=0.4)
    parser.add_argument("--z-coeff", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--out", default=None)
    args = parser.parse_args()

    set_seed(args.seed)
    config = LlamaConfig(vocab_size=128, hidden_size=96, intermediate_size=256, num_hidden_layers=3,
                         num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64,
                         pad_token_id=0, bos_token_id=1, eos_token_id=2)
    model = LlamaForCausalLM(config)
    training_args = TrainingArguments(
        output_dir=args.out or tempfile.mkdtemp(), use_cpu=True, per_device_train_batch_size=4,
        gradient_accumulation_steps=2, num_train_epochs=args.epochs, learning_rate=args.lr, optim="sgd",
        lr_scheduler_type="cosine", warmup_steps=10, max_grad_norm=1.0, logging_steps=10,
        average_tokens_across_devices=True, save_strategy="no", report_to=[], disable_tqdm=True, seed=args.seed)
    trainer = ZLossTrainer(model=model, args=training_args, train_dataset=Dialogues(args.samples, 128, args.seed),
                           data_collator=PadCollator(), z_coeff=args.z_coeff)
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
