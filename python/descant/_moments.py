# SPDX-License-Identifier: MIT
"""Adam's second moments, as those of the mean gradient of all trainers.

Adam divides by the root of v, a running mean of g². The noise in a trainer's own g² is n times that
in the mean gradient of n trainers, by which DDP steps, so that steps are up to √n times shorter
than DDP's, and by another factor in each parameter. Of the mean gradient the second moment is
E[g]² + Var[g] / n. With Adam's own m for E[g], that is

    v = b2 v + (1 - b2) (g² / n + (1 - 1 / n) m²)       instead of      v = b2 v + (1 - b2) g²

which is the optimizer's v after its step plus (1 - b2) (1 - 1 / n) (m² - g²).

L2 decay that is a part of g (not AdamW's) is seen by the optimizer alone, and AMSGrad divides by a
largest v, which cannot be lowered later: these keep their own v."""

from typing import Any, Dict, Tuple

from ._optimizers import calls_hooks

_ADAMS = ("Adam", "AdamW", "NAdam", "RAdam")


class Moments:
    """Corrects those of one optimizer, if it is one of Adam's kind."""

    def __init__(self, optimizer: Any):
        import torch
        self._optimizer = optimizer
        self._is_adam = any(isinstance(optimizer, getattr(torch.optim, name)) for name in _ADAMS)
        self._decouples = isinstance(optimizer, torch.optim.AdamW)
        self._tells_of_inf = calls_hooks(optimizer)     # found_inf is as old as hooks are
        self._on_device: Dict[Any, Tuple[Any, int]] = {}

    def correct(self, trainers: int) -> None:
        """After a step, while its gradients are there."""
        left_out = getattr(self._optimizer, "found_inf", None)      # by a GradScaler, in fused steps
        if not self._is_adam or trainers < 2 or (left_out is not None and bool(left_out)):
            return
        for group in self._optimizer.param_groups:
            if not self._keeps_its_own(group):
                self._correct(group, 1 - 1 / trainers)

    def _keeps_its_own(self, group: Dict[str, Any]) -> bool:
        decays = group["weight_decay"] and not group.get("decoupled_weight_decay", self._decouples)
        return bool(decays or group.get("amsgrad") or
                    (group.get("fused") and not self._tells_of_inf))

    def _step_of(self, parameter: Any, step: Any) -> int:
        """A count on a device is asked for once, as an answer takes time."""
        if getattr(step, "is_cuda", False):
            known, count = self._on_device.get(parameter, (None, 0))
            count = count + 1 if known is step else int(step)
            self._on_device[parameter] = step, count
            return count
        return int(step)

    def _correct(self, group: Dict[str, Any], share: float) -> None:
        import torch
        of = self._optimizer.state
        stepped = [p for p in group["params"] if p.grad is not None and "exp_avg_sq" in of.get(p, {})]
        if not stepped:
            return
        means, squares = ([of[p][key] for p in stepped] for key in ("exp_avg", "exp_avg_sq"))
        gradients = [p.grad for p in stepped]
        b1, b2 = (float(b) for b in group["betas"])
        rest = (1 - b2) * share
        rests = [rest / (1 - b1 ** self._step_of(p, of[p]["step"])) ** 2 for p in stepped]
        with torch.no_grad():
            torch._foreach_addcmul_(squares, means, means, rests)
            torch._foreach_addcmul_(squares, gradients, gradients, value=-rest)
