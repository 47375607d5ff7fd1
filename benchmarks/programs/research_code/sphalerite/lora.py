import math

import torch
import torch.nn as nn


class LoRALinear(nn.Module):
    def __init__(self, base, r, alpha, dropout=0.0):
        super().__init__()
        self.weight = nn.Parameter(base.weight.detach().clone(), requires_grad=False)
        self.bias = nn.Parameter(base.bias.detach().clone(), requires_grad=False)
        self.lora_a = nn.Parameter(torch.empty(r, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        self.scale = alpha / r
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        y = nn.functional.linear(x, self.weight, self.bias)
        return y + self.scale * (self.drop(x) @ self.lora_a.t() @ self.lora_b.t())

    @torch.no_grad()
    def merge(self):
        self.weight += self.scale * self.lora_b @ self.lora_a
        self.lora_b.zero_()


def inject_lora(model, targets, r, alpha):
    done = []
    for name, module in list(model.named_modules()):
        for child_name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child_name in targets:
                setattr(module, child_name, LoRALinear(child, r, alpha))
                done.append(f"{name}.{child_name}")
    return done


def adapter_state(model):
    return {k: v for k, v in model.state_dict().items() if "lora_" in k or k.startswith("head")}


def merge_lora(model):
    for m in model.modules():
        if isinstance(m, LoRALinear):
            m.merge()
