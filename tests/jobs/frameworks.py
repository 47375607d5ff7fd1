"""Unmodified frameworks, each in a training of a second: nothing of ours is in them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from jobs.by_design import net, rows
from jobs.replicas import digest_of_training

# -- Lightning -----------------------------------------------------------------------------------------------------------


def _lightning(module: Any, **about: Any) -> str:
    import logging

    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    lightning.seed_everything(0, workers=True, verbose=False)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    strategy = DDPStrategy(process_group_backend="gloo", find_unused_parameters=about.pop("unused", False))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, max_epochs=about.pop("max_epochs", 2), **{**quiet, **about}
    )
    trainer.fit(module, DataLoader(rows(), 4, shuffle=True), DataLoader(rows(), 8))
    return digest_of_training(module)


def _module(**about: Any) -> Any:
    import lightning

    class Plain(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: Any, number: int) -> Tensor:
            return cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, number: int) -> None:
            self.log("seen", cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    return Plain()


def lightning_automatic(rank: int, world_size: int) -> str:
    return _lightning(_module())


def lightning_accumulation_and_clipping(rank: int, world_size: int) -> str:
    return _lightning(_module(), accumulate_grad_batches=4, gradient_clip_val=0.5)


def lightning_averaging(rank: int, world_size: int) -> str:
    from lightning.pytorch.callbacks import EMAWeightAveraging

    return _lightning(_module(), callbacks=[EMAWeightAveraging(decay=0.9)])


def lightning_swa(rank: int, world_size: int) -> str:
    from lightning.pytorch.callbacks import StochasticWeightAveraging

    return _lightning(_module(), callbacks=[StochasticWeightAveraging(swa_lrs=1e-3, swa_epoch_start=0.5)], max_epochs=3)


def lightning_manual(rank: int, world_size: int) -> str:
    """Two optimizers in turn on one wrapped module."""
    import lightning

    class Adversarial(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.automatic_optimization = False
            self.maker, self.critic = nn.Linear(6, 12), nn.Linear(12, 1)

        def training_step(self, batch: Any, number: int) -> None:
            making, judging = self.optimizers()
            fake = self.maker(batch[0][:, :6])
            self.toggle_optimizer(judging)
            judging.zero_grad()
            self.manual_backward(self.critic(fake.detach()).mean() - self.critic(batch[0]).mean())
            judging.step()
            self.untoggle_optimizer(judging)
            self.toggle_optimizer(making)
            making.zero_grad()
            self.manual_backward(-self.critic(self.maker(batch[0][:, :6])).mean())
            making.step()
            self.untoggle_optimizer(making)

        def configure_optimizers(self) -> Any:
            return [torch.optim.Adam(part.parameters(), lr=1e-3) for part in (self.maker, self.critic)], []

    return _lightning(Adversarial(), unused=True, limit_val_batches=0)


# -- accelerate ----------------------------------------------------------------------------------------------------------


def _accelerated(steps: int) -> tuple[Any, Any, Any, Any]:
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    set_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return accelerator, *accelerator.prepare(model, optimizer, DataLoader(rows(), 4, shuffle=True))


def accelerate_accumulation(rank: int, world_size: int) -> str:
    accelerator, model, optimizer, loader = _accelerated(4)
    for _ in range(2):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                accelerator.backward(cross_entropy(model(inputs), targets))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
    return digest_of_training(model)


def accelerate_save_and_resume(rank: int, world_size: int) -> str:
    accelerator, model, optimizer, loader = _accelerated(1)
    for number, (inputs, targets) in enumerate(loader):
        accelerator.backward(cross_entropy(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
        if number == 5:
            accelerator.save_state("state")
    accelerator.load_state("state")
    for inputs, targets in accelerator.skip_first_batches(loader, 6):
        accelerator.backward(cross_entropy(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
    return digest_of_training(model)


# -- transformers --------------------------------------------------------------------------------------------------------


class Tokens(Dataset[dict[str, Tensor]]):
    """Sentences of random words that name their own labels."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        words = torch.randint(1, 64, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words.clone()}


def _trainer(**about: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    usual = {
        "output_dir": "out",
        "use_cpu": True,
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "report_to": [],
        "disable_tqdm": True,
        "learning_rate": 1e-3,
        "seed": 0,
        "ddp_backend": "gloo",
        "save_strategy": "no",
        "logging_strategy": "no",
    }
    arguments = TrainingArguments(**{**usual, **about})
    return Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Tokens(), eval_dataset=Tokens())


def trainer_accumulation_and_evaluation(rank: int, world_size: int) -> str:
    trainer = _trainer(gradient_accumulation_steps=2, eval_strategy="epoch", max_grad_norm=0.5, warmup_steps=2)
    trainer.train()
    return digest_of_training(trainer.model)


def trainer_save_and_resume(rank: int, world_size: int) -> str:
    trainer = _trainer(save_strategy="steps", save_steps=4, max_steps=8)
    trainer.train()
    again = _trainer(save_strategy="no", max_steps=12)
    again.train(resume_from_checkpoint=str(Path("out", "checkpoint-8")))
    return digest_of_training(again.model)


LIGHTNING = (
    lightning_automatic,
    lightning_accumulation_and_clipping,
    lightning_averaging,
    lightning_swa,
    lightning_manual,
)
ACCELERATE = (accelerate_accumulation, accelerate_save_and_resume)
TRANSFORMERS = (trainer_accumulation_and_evaluation, trainer_save_and_resume)
for _job in LIGHTNING:
    _job.makes_its_own_group = True  # type: ignore[attr-defined]
