# SPDX-License-Identifier: MIT
"""Adam's second moments, as those of the mean gradient of all trainers.

Adam divides by the root of v, a running mean of g². The noise in a trainer's own g² is n times that
in the mean gradient of n trainers, by which DDP steps, so that steps are up to √n times shorter
than DDP's, and by another factor in each parameter. Of the mean gradient the second moment is
E[g]² + Var[g] / n. With Adam's own m for E[g], that is

    v = b2 v + (1 - b2) (g² / n + (1 - 1 / n) m²)       instead of      v = b2 v + (1 - b2) g²

or the optimizer's v after its step and (1 - b2) (1 - 1 / n) (m² - g²)."""

from typing import Any, Dict

_ADAMS = ("Adam", "AdamW", "NAdam", "RAdam")


class Moments:
    """Of one optimizer; of others than Adam's kind nothing."""

    def __init__(self, optimizer: Any):
        import torch
        self._optimizer = optimizer
        self._is_adam = any(isinstance(optimizer, getattr(torch.optim, name)) for name in _ADAMS)
        self._decouples = isinstance(optimizer, torch.optim.AdamW)
        self._steps = 0

    def correct(self, trainers: int) -> None:
        """After a step, while its gradients are there."""
        left_out = getattr(self._optimizer, "found_inf", None)      # by a GradScaler, in fused steps
        if not self._is_adam or trainers < 2 or (left_out is not None and bool(left_out)):
            return
        if self._steps == 0:        # asked once, as on a device an answer takes time
            self._steps = max((int(state.get("step", 1)) for state in
                               self._optimizer.state.values()), default=1) - 1
        self._steps += 1
        for group in self._optimizer.param_groups:
            if not group.get("amsgrad"):
                self._correct(group, 1 - 1 / trainers)

    def _correct(self, group: Dict[str, Any], share: float) -> None:
        import torch
        b1, b2 = (float(b) for b in group["betas"])
        of = self._optimizer.state
        stepped = [p for p in group["params"] if p.grad is not None and "exp_avg_sq" in of.get(p, {})]
        if not stepped:
            return
        means, squares = ([of[p][key] for p in stepped] for key in ("exp_avg", "exp_avg_sq"))
        gradients = [p.grad for p in stepped]
        with torch.no_grad():
            if group["weight_decay"] and not group.get("decoupled_weight_decay", self._decouples):
                gradients = torch._foreach_add(gradients, stepped, alpha=group["weight_decay"])
            rest = (1 - b2) * share
            torch._foreach_addcmul_(squares, gradients, gradients, value=-rest)
            torch._foreach_addcmul_(squares, means, means,
                                    value=rest / (1 - b1 ** self._steps) ** 2)
