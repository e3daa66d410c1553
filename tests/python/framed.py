# SPDX-License-Identifier: MIT
"""What test_frameworks starts by torchrun: two trainers of Hugging Face's Trainer, Accelerate or
Lightning, which write down what came of it.

    framed.py FOLDER trainer|again|accelerate|lightning|both [PLAN]

again: after a training that an exception has ended; both: DDP, and Descant."""

import contextlib
import json
import os
import pathlib
import sys

import torch
from torch import nn

import descant

folder, kind = sys.argv[1:3]
plan = sys.argv[3] if len(sys.argv) > 3 else "shadow-easgd"
rank = int(os.environ["RANK"])
torch.set_num_threads(1)
torch.manual_seed(rank)
EXAMPLES, BATCH = 64, 4


class Numbered(torch.utils.data.Dataset):
    """Each trainer notes which examples it was dealt."""

    dealt = []

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, k):
        Numbered.dealt.append(k)
        x = torch.randn(4, generator=torch.Generator().manual_seed(k))
        return {"x": x, "labels": x.sum()}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 1)

    def forward(self, x, labels=None):
        loss = (self.one(x).squeeze(1) - labels).square().mean()
        return {"loss": loss}


def by_trainer(callbacks):
    import transformers
    model = Model()
    args = transformers.TrainingArguments(
        output_dir=folder + "/saved", use_cpu=True, num_train_epochs=2, logging_steps=4,
        per_device_train_batch_size=BATCH, save_steps=8, report_to=[], learning_rate=0.01,
        disable_tqdm=True, max_grad_norm=1.0)
    trainer = transformers.Trainer(model, args, train_dataset=Numbered(), callbacks=callbacks)
    if kind == "again":
        trainer.add_callback(fails_once())
        with contextlib.suppress(ZeroDivisionError):
            trainer.train()
    trainer.train()
    return model, sum("loss" in line for line in trainer.state.log_history), \
        [c.sync for c in callbacks][0]


def fails_once():
    import transformers

    class Fails(transformers.TrainerCallback):
        has_failed = False

        def on_step_end(self, args, state, control, **more):
            if not self.has_failed and state.global_step == 3:
                self.has_failed = True
                raise ZeroDivisionError
    return Fails()


def with_callback():
    from descant.huggingface import DescantCallback
    return by_trainer([DescantCallback(plan)])


def with_both():
    import transformers

    class Naive(transformers.TrainerCallback):
        sync = None

        def on_train_begin(self, args, state, control, **more):
            self.sync = descant.attach(more["model"], plan=plan)
            descant.hook(more["optimizer"], self.sync)

        def on_train_end(self, args, state, control, **more):
            self.sync.finish()
            self.sync.close()
    return by_trainer([Naive()])


def with_accelerate():
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare_model(Model(), evaluation_mode=True)        # without DDP
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer, loader = accelerator.prepare(
        optimizer, torch.utils.data.DataLoader(Numbered(), BATCH, shuffle=True))
    with descant.attach(model, plan=plan, optimizer=optimizer) as sync:
        descant.hook(optimizer, sync)
        for _ in range(2):
            for batch in loader:
                optimizer.zero_grad()
                accelerator.backward(model(**batch)["loss"])
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
    if accelerator.is_main_process:
        accelerator.save_model(model, folder + "/saved")
    return model, 0, sync


def with_lightning():
    import lightning
    from lightning.pytorch.loggers import CSVLogger

    from descant.lightning import DescantStrategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, _):
            loss = self.model(**batch)["loss"]
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=DescantStrategy(plan), max_epochs=2,
        logger=CSVLogger(folder, "log"), default_root_dir=folder, log_every_n_steps=4,
        gradient_clip_val=1.0, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, torch.utils.data.DataLoader(Numbered(), BATCH, shuffle=True))
    return module, 0, trainer.strategy.sync


model, logged, sync = {"trainer": with_callback, "again": with_callback, "both": with_both,
                       "accelerate": with_accelerate, "lightning": with_lightning}[kind]()
pathlib.Path(folder, f"{rank}.json").write_text(json.dumps({
    "rank": sync.rank, "size": sync.size, "steps": sync.stats()["steps"], "logged": logged,
    "dealt": sorted(Numbered.dealt), "values": [p.tolist() for p in model.parameters()]}))
if torch.distributed.is_initialized():
    with contextlib.suppress(RuntimeError):
        torch.distributed.destroy_process_group()
