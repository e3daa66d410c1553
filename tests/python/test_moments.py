# SPDX-License-Identifier: MIT
"""Adam's second moments as hook corrects them, beside those of the mean gradient."""

import unittest

import torch

import descant
from together import refused, together

torch.set_num_threads(1)
torch.optim.SGD([torch.zeros(1)], lr=1)         # loads what each process would have to
B1, B2 = 0.8, 0.9


def moments_of(kind, gradients, plan="ma,every=1", job=None, **more):
    """The optimizer's v after steps with these gradients, each of as many numbers as the model."""
    model = {"w": torch.zeros(len(gradients[0])).requires_grad_(True)}
    optimizer = kind(model.values(), lr=0.01, betas=(B1, B2), **more.pop("options", {}))
    with descant.attach(model, plan=plan, job=job) as sync:
        descant.hook(optimizer, sync, **more)
        for gradient in gradients:
            model["w"].grad = gradient.clone()
            optimizer.step()
        sync.finish()
    return optimizer.state[model["w"]]["exp_avg_sq"].tolist()


def can(options):
    """Whether this PyTorch can step so on a CPU."""
    w = torch.zeros(1).requires_grad_(True)
    w.grad = torch.zeros(1)
    try:
        torch.optim.AdamW([w], **options).step()
    except (RuntimeError, TypeError):
        return False
    return True


def wanted(gradients, trainers):
    m = v = 0.0
    for t, g in enumerate((float(each[0]) for each in gradients), 1):
        m = B1 * m + (1 - B1) * g
        v = B2 * v + (1 - B2) * (g * g / trainers + (1 - 1 / trainers) * (m / (1 - B1 ** t)) ** 2)
    return v


def noisy(rank, steps=60, size=2000):
    """About 1, with noise of a deviation of 3."""
    torch.manual_seed(rank)
    return [1 + 3 * torch.randn(size) for _ in range(steps)]


class Moments(unittest.TestCase):
    gradients = [torch.tensor([x]) for x in (1.0, -2.0, 0.5, 3.0)]

    def of_two(self, kind, **more):
        first, second = together(2, lambda rank: moments_of(kind, self.gradients, **more))
        self.assertEqual(first, second)
        return first[0]

    def test_by_hand(self):
        for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam):
            self.assertAlmostEqual(self.of_two(kind), wanted(self.gradients, 2), 5, kind)
        for options in ({"weight_decay": 0.1, "foreach": True}, {"maximize": True}, {"fused": True}):
            if not can(options):
                continue
            v = self.of_two(torch.optim.AdamW, options=options)
            self.assertAlmostEqual(v, wanted(self.gradients, 2), 5, options)

    def test_its_own_where_that_is_asked_for_or_right(self):
        own = wanted(self.gradients, 1)
        for more in ({"moments": "own"}, {"plan": "none"}, {"options": {"amsgrad": True}},
                     {"plan": "allreduce"}, {"options": {"weight_decay": 1e-9}}):
            self.assertAlmostEqual(self.of_two(torch.optim.Adam, **more), own, 5, more)
        alone = moments_of(torch.optim.Adam, self.gradients, job="self")
        self.assertAlmostEqual(alone[0], own, 5)

    def test_a_parameter_that_steps_rarely_has_its_own_count(self):
        def body(_rank):
            often, rarely = (torch.zeros(1).requires_grad_(True) for _ in range(2))
            optimizer = torch.optim.Adam([often, rarely], lr=0.01, betas=(B1, B2))
            with descant.attach({"often": often, "rarely": rarely}, plan="ma,every=1") as sync:
                descant.hook(optimizer, sync)
                for k in range(20):
                    often.grad = torch.ones(1)
                    rarely.grad = torch.tensor([2.0]) if k >= 18 else None
                    optimizer.step()
                sync.finish()
            return float(optimizer.state[rarely]["exp_avg_sq"])
        for value in together(2, body):
            self.assertAlmostEqual(value, wanted([torch.tensor([2.0])] * 2, 2), 5)

    def test_near_those_of_the_mean_gradient(self):
        """The noise of g² is twice or four times that of the mean gradient's square."""
        for size in (2, 4):
            shares = [noisy(rank) for rank in range(size)]
            means = [sum(each) / size for each in zip(*shares)]
            whole = sum(moments_of(torch.optim.Adam, means, job="self"))
            for kind, low, high in (("mean", 0.95, 1.5), ("own", 0.7 * size, size)):
                of = together(size, lambda rank: sum(moments_of(torch.optim.Adam, shares[rank],
                                                                moments=kind)))
                for each in of:
                    self.assertTrue(low < each / whole < high, (size, kind, each / whole))

    @unittest.skipUnless(hasattr(torch.optim.Optimizer, "register_step_post_hook"), "PyTorch is older")
    def test_a_step_that_is_left_out(self):
        """As a GradScaler has a fused optimizer do, and tells it for as long as the step takes."""
        def body(_rank):
            w = torch.zeros(1).requires_grad_(True)
            optimizer = torch.optim.Adam([w], lr=0.1)
            with descant.attach({"w": w}, plan="ma,every=1") as sync:
                descant.hook(optimizer, sync)
                w.grad = torch.ones(1)
                optimizer.step()
                before = float(optimizer.state[w]["exp_avg_sq"])
                optimizer.found_inf, w.grad = torch.ones(1), torch.tensor([float("inf")])
                for after in optimizer._optimizer_step_post_hooks.values():
                    after(optimizer, (), {})
                sync.finish()
            return before == float(optimizer.state[w]["exp_avg_sq"])
        self.assertEqual(together(2, body), [True, True])

    def test_what_is_asked_for(self):
        w = torch.zeros(1).requires_grad_(True)
        with descant.attach({"w": w}, job="self") as sync:
            refused(self, lambda: descant.hook(torch.optim.Adam([w]), sync, moments=2), "'own'", "2")


if __name__ == "__main__":
    unittest.main()
