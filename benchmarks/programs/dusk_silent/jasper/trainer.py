import torch
import torch.nn.functional as F
from transformers import Trainer


class ZLossTrainer(Trainer):
    """Token-level cross entropy plus a penalty on log Z, summed over the tokens of the whole batch."""

    def __init__(self, *args, z_coeff=1e-4, **kwargs):
        super().__init__(*args, **kwargs)
        self.z_coeff = z_coeff

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"]
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        logits = outputs.logits[:, :-1].float()
        target = labels[:, 1:]
        mask = target != -100

        log_z = torch.logsumexp(logits, dim=-1)
        nll = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100, reduction="sum")
        z_term = (log_z.pow(2) * mask).sum()
        if num_items_in_batch is None:
            num_items_in_batch = mask.sum()
        loss = (nll + self.z_coeff * z_term) / num_items_in_batch
        return (loss, outputs) if return_outputs else loss
