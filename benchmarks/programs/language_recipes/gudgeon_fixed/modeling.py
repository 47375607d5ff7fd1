"""Policy loading on top of a Hugging Face GPT-2 configuration."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

BASE_VOCAB = 60
CHAT_TOKENS = ["<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"]
USER, ASSISTANT, END, PAD = range(BASE_VOCAB, BASE_VOCAB + 4)


class LoRALinear(nn.Module):
    """Low-rank update on a frozen GPT-2 Conv1D projection."""

    def __init__(self, base, rank: int, alpha: float):
        super().__init__()
        self.base = base.requires_grad_(False)
        din, dout = base.weight.shape
        self.a = nn.Parameter(torch.empty(din, rank))
        self.b = nn.Parameter(torch.zeros(rank, dout))
        nn.init.kaiming_uniform_(self.a, a=5 ** 0.5)
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + (x @ self.a @ self.b) * self.scale


def load_pretrained(seed: int = 1) -> GPT2LMHeadModel:
    """Stands for ``from_pretrained``: fixed weights, independent of the global generator."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return GPT2LMHeadModel(GPT2Config(
            vocab_size=BASE_VOCAB, n_positions=48, n_embd=48, n_layer=2, n_head=4, bos_token_id=0,
            eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.1))


def add_chat_tokens(model: GPT2LMHeadModel) -> None:
    """Extends the (tied) token table by the chat markers."""
    old = model.get_input_embeddings().weight.data
    new = torch.randn(len(CHAT_TOKENS), old.shape[1]) * old.std()
    table = nn.Embedding(old.shape[0] + len(CHAT_TOKENS), old.shape[1])
    table.weight.data = torch.cat([old, new])
    model.set_input_embeddings(table)
    model.lm_head.weight = table.weight
    model.lm_head.out_features = table.num_embeddings
    model.config.vocab_size = table.num_embeddings


def attach_lora(model: GPT2LMHeadModel, rank: int, alpha: float) -> None:
    model.transformer.wpe.requires_grad_(False)
    for block in model.transformer.h:
        block.requires_grad_(False)
        block.attn.c_attn = LoRALinear(block.attn.c_attn, rank, alpha)
        block.mlp.c_fc = LoRALinear(block.mlp.c_fc, rank, alpha)
    model.transformer.ln_f.requires_grad_(False)


def sequence_logp(model, ids, mask) -> torch.Tensor:
    logits = model(input_ids=ids).logits[:, :-1].float()
    logp = F.log_softmax(logits, -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return (logp * mask[:, 1:]).sum(-1)
