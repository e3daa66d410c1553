# SPDX-License-Identifier: MIT
"""Descant in Lightning:

    from descant.lightning import DescantStrategy
    trainer = Trainer(accelerator="cpu", devices=2, strategy=DescantStrategy("shadow-delta"))
    trainer.fit(model, loader)

It is Lightning's DDP strategy, started, ranked, with its sampler, its logger and checkpoints by rank
zero, without DDP around the model: Descant keeps that together. As fit ends, all have the same
model."""

from typing import Any, Optional

try:
    from lightning.pytorch.strategies import DDPStrategy
except ImportError:
    from pytorch_lightning.strategies import DDPStrategy

from . import attach, hook
from ._sync import Sync


class DescantStrategy(DDPStrategy):
    """What attach takes, but the model. optimizer=True: the state of the one optimizer is kept in
    step, too. strategy: options of DDPStrategy. sync: of the fit that runs, or has ended last."""

    strategy_name = "descant"
    sync: Optional[Sync] = None

    def __init__(self, plan: Optional[str] = None, *, optimizer: bool = False,
                 strategy: Optional[dict] = None, **options: Any):
        super().__init__(**(strategy or {}))
        self._options = {"plan": plan, **options}
        self._keeps_optimizer = optimizer

    def configure_ddp(self) -> None:
        """Nothing is wrapped."""

    def on_train_start(self) -> None:
        super().on_train_start()
        options = dict(self._options)
        if self._keeps_optimizer:
            [options["optimizer"]] = self.optimizers
        self.sync = attach(self.lightning_module, **options)
        for optimizer in self.optimizers:
            hook(optimizer, self.sync)

    def on_train_end(self) -> None:
        assert self.sync is not None
        self.sync.finish()
        self.sync.close()
        super().on_train_end()

    def teardown(self) -> None:
        if self.sync is not None:       # after an exception it has not ended
            self.sync.close()
        super().teardown()
