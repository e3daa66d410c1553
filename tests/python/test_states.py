# SPDX-License-Identifier: MIT
"""What optimizers keep, averaged with the parameters: values of real processes, what is said."""

import copy
import gc
import unittest

import torch
from torch import nn

import descant
from together import refused, together

torch.set_num_threads(1)
torch.optim.SGD([torch.zeros(1)], lr=1)         # loads what each process would have to
SGD = {"lr": 0.1, "momentum": 0.5}


def made(dtype=torch.float32):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 1, bias=False)).to(dtype)


def push(model, optimizer, value):
    """A step with this gradient."""
    for p in model.parameters():
        p.grad = torch.full_like(p, value)
    optimizer.step()


def alone(model, optimizer, plan="ma,every=1"):
    return descant.attach(model, plan=plan, job="self", optimizer=optimizer)


class Rebuilds(torch.optim.Optimizer):
    """Puts another tensor into its state in each step."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.state[p]["mean"] = 0.5 * self.state[p].get("mean", torch.zeros(())) + p.grad.mean()
            with torch.no_grad():
                p -= self.param_groups[0]["lr"] * self.state[p]["mean"]


class Averaged(unittest.TestCase):
    def momenta(self, optimizer):
        return {float(x) for state in optimizer.state.values()
                for x in state["momentum_buffer"].flatten()}

    def test_momentum_is_by_choice(self):
        for chosen, wanted in ((True, [{3.0}, {3.0}]), (False, [{1.5}, {4.5}])):
            def body(rank):
                model = made()
                optimizer = torch.optim.SGD(model.parameters(), **SGD)
                sync = descant.attach(model, plan="ma,every=1",
                                      optimizer=optimizer if chosen else None)
                with sync:
                    for _ in range(2):      # 1 then 1.5, 3 then 4.5
                        push(model, optimizer, 1.0 + 2 * rank)
                        sync.step()
                return self.momenta(optimizer)
            self.assertEqual(together(2, body), wanted)

    def test_it_is_in_the_librarys_memory_and_then_its_own(self):
        model = made()
        optimizer = torch.optim.SGD(model.parameters(), **SGD)
        with alone(model, optimizer) as sync:
            push(model, optimizer, 1.0)
            sync.step()
            state = optimizer.state[model[0].weight]
            lent = state["momentum_buffer"].data_ptr()
            self.assertIn(lent, [s.address for s in sync._segments])
            push(model, optimizer, 1.0)
            sync.step()
            self.assertEqual(state["momentum_buffer"].data_ptr(), lent)
        self.assertTrue(sync._job.left)
        self.assertEqual(state["momentum_buffer"].data_ptr(), lent)
        self.assertEqual(self.momenta(optimizer), {1.5})

    def test_moments_of_adam_and_its_like(self):
        for kind in ("Adam", "AdamW", "NAdam", "RAdam", "Adagrad", "RMSprop"):
            def body(rank):
                model = made()
                optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
                with descant.attach(model, plan="ma,every=1", optimizer=optimizer) as sync:
                    for k in range(3):
                        push(model, optimizer, 1.0 + 2 * rank)
                        sync.step()
                state = optimizer.state[model[0].weight]
                return {key: value.tolist() for key, value in state.items()
                        if torch.is_tensor(value) and value.shape == model[0].weight.shape}
            first, second = together(2, body)
            self.assertEqual(first, second, kind)
            self.assertTrue(first, kind)

    def test_all_that_any_optimizer_keeps_in_floats(self):
        kinds = [torch.optim.Adadelta, torch.optim.Adamax, torch.optim.ASGD, torch.optim.Rprop,
                 Rebuilds]
        kinds += [torch.optim.Adafactor] if hasattr(torch.optim, "Adafactor") else []
        for kind in kinds:
            def body(rank):
                model = made()
                optimizer = kind(model.parameters(), lr=0.1)
                with descant.attach(model, plan="ma,every=1", optimizer=optimizer) as sync:
                    for k in range(3):
                        push(model, optimizer, 1.0 + 2 * rank)
                        sync.step()
                return [{key: value.tolist() for key, value in optimizer.state[p].items()
                         if torch.is_tensor(value)} for p in model.parameters()]
            first, second = together(2, body)
            self.assertEqual(first, second, kind)
            self.assertTrue(all(state for state in first), kind)

    def test_who_joins_has_the_others_count_of_steps(self):
        """Else Adam's corrections would make its first steps ten times too long."""
        def body(rank):
            model = made()
            optimizer = torch.optim.Adam(model.parameters())
            for _ in range(0 if rank else 100):
                push(model, optimizer, 1.0)
            with descant.attach(model, plan="none", optimizer=optimizer) as sync:
                push(model, optimizer, 1.0)
                sync.step()
                return {float(state["step"]) for state in optimizer.state.values()}
        self.assertEqual(together(2, body), [{101.0}, {101.0}])

    def test_of_half_precision(self):
        def body(rank):
            model = made(torch.bfloat16)
            optimizer = torch.optim.SGD(model.parameters(), **SGD)
            with descant.attach(model, plan="ma,every=1", optimizer=optimizer) as sync:
                for _ in range(2):
                    push(model, optimizer, 1.0 + 2 * rank)
                    sync.step()
            return self.momenta(optimizer)
        self.assertEqual(together(2, body), [{3.0}, {3.0}])

    def test_all_begin_with_the_first_ones(self):
        def body(rank):
            model = made()
            optimizer = torch.optim.SGD(model.parameters(), **SGD)
            push(model, optimizer, 1.0 + rank)
            with descant.attach(model, plan="none", optimizer=optimizer):
                return self.momenta(optimizer)
        self.assertEqual(together(2, body), [{1.0}, {1.0}])

    def test_what_comes_later_is_added_to_the_first_ones(self):
        for dtype in (torch.float32, torch.bfloat16):
            def body(rank):
                model = made(dtype)
                optimizer = torch.optim.SGD(model.parameters(), **SGD)
                if rank == 0:
                    push(model, optimizer, 1.0)
                with descant.attach(model, plan="none", optimizer=optimizer) as sync:
                    sync.step()
                    push(model, optimizer, 2.0)
                    sync.step()
                    return self.momenta(optimizer)
            self.assertEqual(together(2, body), [{2.5}, {3.0}], dtype)

    def test_it_is_loaded_in_a_pause(self):
        model = made()
        optimizer = torch.optim.SGD(model.parameters(), **SGD)
        with alone(model, optimizer) as sync:
            push(model, optimizer, 1.0)
            sync.step()
            saved = copy.deepcopy(optimizer.state_dict())
            push(model, optimizer, 8.0)
            with sync.paused():
                optimizer.load_state_dict(saved)
            sync.step()
            self.assertEqual(self.momenta(optimizer), {1.0})
            address = optimizer.state[model[0].weight]["momentum_buffer"].data_ptr()
            self.assertIn(address, [s.address for s in sync._segments])


class Said(unittest.TestCase):
    def test_loading_without_a_pause(self):
        model = made()
        optimizer = torch.optim.SGD(model.parameters(), **SGD)
        with alone(model, optimizer) as sync:
            push(model, optimizer, 1.0)
            sync.step()
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            refused(self, sync.step, "'0.weight.momentum_buffer'", "sync.paused()")
            sync._finished = True

    def test_what_cannot_be_averaged(self):
        model = made()
        adam = torch.optim.AdamW(model.parameters())
        for plan in ("shadow-bmuf", "dasgd-delta", "diloco"):
            refused(self, lambda: alone(model, adam, plan), "'exp_avg_sq'", "below zero")
        alone(model, torch.optim.SGD(model.parameters(), **SGD), "shadow-bmuf").close()
        refused(self, lambda: descant.attach(model, job="self", workers=2, optimizer=adam),
                "one worker")
        sparse = nn.Embedding(4, 2, sparse=True)
        optimizer = torch.optim.SGD(sparse.parameters(), **SGD)
        sync = alone(sparse, optimizer)
        sparse(torch.tensor([1])).sum().backward()
        optimizer.step()
        refused(self, sync.step, "'weight.momentum_buffer'", "sparse")
        sync.close()
        refused(self, lambda: alone(model, torch.optim.LBFGS(model.parameters())), "LBFGS",
                "leave out optimizer=")
        around = torch.optim.SGD(model.parameters(), **SGD)
        around.base = torch.optim.SGD(model.parameters(), **SGD)
        refused(self, lambda: alone(model, around), "wraps another", "optimizer=SGD.base")
        refused(self, lambda: alone(model, model), "torch.optim.Optimizer", "Linear")


if __name__ == "__main__":
    unittest.main()
