import torch
import torch.nn.functional as F
from transformers import Trainer


class DistillTrainer(Trainer):
    """Cross entropy on the labels plus forward KL to a frozen teacher."""

    def __init__(self, *args, teacher=None, alpha=0.5, temperature=2.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.teacher = teacher.eval().requires_grad_(False)
        self.alpha, self.temperature = alpha, temperature
        self.model_accepts_loss_kwargs = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"]
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        with torch.no_grad():
            target = self.teacher(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        student, target, gold = outputs.logits[:, :-1], target[:, :-1], labels[:, 1:]
        ce = F.cross_entropy(student.flatten(0, 1), gold.flatten())
        t = self.temperature
        kd = F.kl_div((student / t).log_softmax(-1).flatten(0, 1), (target / t).log_softmax(-1).flatten(0, 1),
                      log_target=True, reduction="batchmean") * t * t
        loss = self.alpha * ce + (1 - self.alpha) * kd
        return (loss, outputs) if return_outputs else loss
