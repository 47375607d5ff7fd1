"""Unmodified frameworks, each in a training of a second: nothing of ours is in them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

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


def lightning_bf16(rank: int, world_size: int) -> str:
    return _lightning(_module(), precision="bf16-mixed", gradient_clip_val=0.5)


def lightning_fabric(rank: int, world_size: int) -> str:
    """Fabric's own loop: accumulation without synchronising, clipping, saving and loading."""
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy

    fabric = Fabric(accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="gloo"))
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    net_, loader = net(), fabric.setup_dataloaders(DataLoader(rows(), 4, shuffle=True))
    model, optimizer = fabric.setup(net_, torch.optim.AdamW(net_.parameters(), lr=1e-3))
    for epoch in range(2):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for number, (inputs, targets) in enumerate(loader, 1):
            accumulating = number % 2 != 0
            with fabric.no_backward_sync(model, enabled=accumulating):
                fabric.backward(cross_entropy(model(inputs), targets) / 2)
            if not accumulating:
                fabric.clip_gradients(model, optimizer, max_norm=0.5)
                optimizer.step()
                optimizer.zero_grad()
        state = {"model": model, "optimizer": optimizer, "epoch": epoch}
        fabric.save("fabric.ckpt", state)
        fabric.load("fabric.ckpt", state)
    return digest_of_training(net_)


# -- timm ----------------------------------------------------------------------------------------------------------------


def timm_recipe(rank: int, world_size: int) -> str:
    """The loop of timm's train.py: its optimizer, schedule, averaged model, label smoothing, mix-up and clipping."""
    import timm
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import create_scheduler_v2
    from timm.utils import ModelEmaV3, distribute_bn, reduce_tensor

    model = timm.create_model("test_resnet", num_classes=4, drop_path_rate=0.1)
    optimizer = create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.05)
    average = ModelEmaV3(model, decay=0.9)
    wrapped = nn.parallel.DistributedDataParallel(model)
    schedule, epochs = create_scheduler_v2(optimizer, "cosine", num_epochs=2, warmup_epochs=1, updates_per_epoch=4)
    images = torch.randn(32, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(images, torch.arange(32) % 4)
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, 4, sampler=sampler, drop_last=True)
    mixup, criterion = Mixup(mixup_alpha=0.2, num_classes=4, label_smoothing=0.1), SoftTargetCrossEntropy()
    updates = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        wrapped.train()
        for inputs, targets in loader:
            mixed, soft = mixup(inputs, targets)
            optimizer.zero_grad()
            criterion(wrapped(mixed), soft).backward()
            nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
            optimizer.step()
            updates += 1
            average.update(model, step=updates)
            schedule.step_update(num_updates=updates)
        distribute_bn(wrapped, world_size, True)
        wrapped.eval()
        with torch.inference_mode():
            for inputs, targets in loader:
                reduce_tensor(cross_entropy(wrapped(inputs), targets), world_size)
        schedule.step(epoch + 1)
    return digest_of_training(model)


# -- as torchtune does ---------------------------------------------------------------------------------------------------


def sharded_recipe(rank: int, world_size: int) -> str:
    """fully_shard, activation checkpointing, summed losses over a window, and gradients that are scaled by all its tokens."""
    from torch.distributed._composable import checkpoint
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(*(nn.Sequential(nn.Linear(12, 12), nn.ReLU()) for _ in range(3)), nn.Linear(12, 4))
    for block in model[:3]:
        checkpoint(block)  # type: ignore[operator]
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    lengths = torch.Generator().manual_seed(rank)
    for _ in range(6):
        tokens = torch.zeros(1)
        for number in range(2):
            many = int(torch.randint(4, 12, (1,), generator=lengths))
            model.set_requires_gradient_sync(number == 1)
            scores = model(torch.randn(many, 12, generator=lengths))
            cross_entropy(scores, torch.arange(many) % 4, reduction="sum").backward()
            tokens += many
        dist.all_reduce(tokens)
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad *= world_size / tokens.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
    return str([float(one.full_tensor().sum()) for one in model.parameters()])


# -- DeepSpeed -----------------------------------------------------------------------------------------------------------


def deepspeed_plain(rank: int, world_size: int) -> str:
    return _trained_by_zero(0)


def deepspeed_zero1(rank: int, world_size: int) -> str:
    return _trained_by_zero(1)


def deepspeed_zero2(rank: int, world_size: int) -> str:
    return _trained_by_zero(2)


def deepspeed_zero3(rank: int, world_size: int) -> str:
    return _trained_by_zero(3)


def _trained_by_zero(stage: int) -> str:
    """Accumulation, clipping, its own loader, saving and loading."""
    import deepspeed  # type: ignore[import-not-found]

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # its C++ would be compiled, which takes minutes
    deepspeed.init_distributed(dist_backend="gloo")
    model = net()
    engine, _, loader, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        training_data=rows(),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 0.5,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": stage},
        },
    )
    for epoch in range(2):
        loader.data_sampler.set_epoch(epoch)
        for inputs, targets in loader:
            engine.backward(cross_entropy(engine(inputs), targets))
            engine.step()
        engine.save_checkpoint("zero", tag=f"{stage}-{epoch}")
    engine.load_checkpoint("zero", tag=f"{stage}-1")
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        return digest_of_training(model)


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


def _trainer(kind: str = "Trainer", **about: Any) -> Any:
    import transformers
    from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments
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
    made = transformers.Trainer if kind == "Trainer" else _regularised(kind == "divides")
    return made(GPT2LMHeadModel(config), arguments, train_dataset=Tokens(), eval_dataset=Tokens())


def _regularised(divides: bool) -> Any:
    """A Trainer with a loss of two terms, each a mean over its micro-batch."""
    from transformers import Trainer

    class Regularised(Trainer):  # type: ignore[misc]
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            logits, labels = model(input_ids=inputs["input_ids"]).logits[:, :-1], inputs["labels"][:, 1:]
            loss = cross_entropy(logits.flatten(0, 1), labels.flatten()) + 0.1 * logits.square().mean()
            if divides:
                loss = loss / self.args.gradient_accumulation_steps
            return (loss, None) if return_outputs else loss  # of this micro-batch alone

    return Regularised


def trainer_with_a_loss_of_its_own(rank: int, world_size: int) -> str:
    trainer = _trainer("sums", gradient_accumulation_steps=4, max_steps=6)
    trainer.train()
    return digest_of_training(trainer.model)


def trainer_that_divides_its_loss(rank: int, world_size: int) -> str:
    trainer = _trainer("divides", gradient_accumulation_steps=4, max_steps=6)
    trainer.train()
    return digest_of_training(trainer.model)


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
    lightning_bf16,
    lightning_fabric,
)
OTHERS = (timm_recipe, sharded_recipe)
DEEPSPEED = (deepspeed_plain, deepspeed_zero1, deepspeed_zero2, deepspeed_zero3)
ACCELERATE = (accelerate_accumulation, accelerate_save_and_resume)
TRANSFORMERS = (trainer_accumulation_and_evaluation, trainer_save_and_resume, trainer_that_divides_its_loss)
for _job in LIGHTNING:
    _job.makes_its_own_group = True  # type: ignore[attr-defined]
