# SPDX-License-Identifier: MIT
"""Descant in Hugging Face's Trainer:

    from descant.huggingface import DescantCallback
    trainer = Trainer(model, args, train_dataset=…, callbacks=[DescantCallback("shadow-delta")])
    trainer.train()

and started by torchrun. Trainer deals the data, logs, and writes checkpoints in rank 0 as it does
under DDP, which it then is without: prepared for evaluation, the model is not wrapped. As train()
ends, all have the same model. Trainer's own collective calls stay: at each log the losses are
gathered."""

from typing import Any, Optional

from accelerate import Accelerator
from transformers import TrainerCallback

from . import Hook, attach, hook
from ._sync import Sync


class DescantCallback(TrainerCallback):
    """What attach takes, but the model. optimizer=True: the state of Trainer's own is kept in step,
    too. sync: of the training that runs, or has ended last."""

    sync: Optional[Sync] = None
    _hook: Optional[Hook] = None

    def __init__(self, plan: Optional[str] = None, *, optimizer: bool = False, **options: Any):
        self._options = {"plan": plan, **options}
        self._keeps_optimizer = optimizer

    def on_init_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        Accelerator().prepare_model(more["model"], evaluation_mode=True)
        # else the numbers of tokens are gathered in each step
        args.average_tokens_across_devices = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._close()           # after an exception the last training has not ended
        options = dict(self._options)
        if self._keeps_optimizer:
            options["optimizer"] = more["optimizer"]
        self.sync = attach(more["model"], **options)
        self._hook = hook(more["optimizer"], self.sync)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        assert self.sync is not None
        self.sync.finish()
        self._close()

    def _close(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        if self.sync is not None:
            self.sync.close()
