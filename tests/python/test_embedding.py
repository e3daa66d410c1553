# SPDX-License-Identifier: MIT
"""descant.Embedding: rows with owners as a module, over TCP and in shared memory."""

import copy
import os
import pickle
import random
import signal
import socket
import time
import unittest

import torch
from torch import nn

import descant
from together import refused, together

torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self, rows=500, width=4, **more):
        super().__init__()
        self.rows = descant.Embedding(rows, width, **more)
        self.out = nn.Linear(width, 1)

    def forward(self, ids):
        return self.out(self.rows(ids).sum(1))[:, 0]


def trained(net):
    net(torch.tensor([[1]])).sum().backward()
    return net


def ports():
    """A port and the next one, both free a moment ago."""
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as a, socket.socket() as b:
            try:
                a.bind(("127.0.0.1", port))
                b.bind(("127.0.0.1", port + 1))
                return port
            except OSError:
                continue


def over_tcp(size, body):
    os.environ["DESCANT_JOB"] = f"tcp:127.0.0.1:{ports()},ranks={max(2, size)}"
    try:
        return together(size, body)
    finally:
        del os.environ["DESCANT_JOB"]


class Embeddings(unittest.TestCase):
    def test_a_step_is_that_of_nn_embedding(self):
        """By a module of PyTorch with the same values and its own optimizer. A row is in each batch,
        since PyTorch's momentum moves those that are in none, too."""
        for name, more, make in (
                ("sgd", {}, lambda p: torch.optim.SGD(p, 0.1)),
                ("sgd", {"momentum": 0.9}, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
                ("adagrad", {}, lambda p: torch.optim.Adagrad(p, 0.1, eps=1e-8)),
                ("adam", {}, lambda p: torch.optim.Adam(p, 0.1))):
            net = Net(40, optimizer=name, lr=0.1, **more)
            with descant.attach(net, plan="none") as sync:
                every = torch.arange(40)
                with torch.no_grad():
                    table = nn.Parameter(net.rows(every).clone())
                optimizer = make([table])
                for step in range(20):
                    ids = torch.cat([torch.randint(40, (20, 2)), torch.randperm(40).view(20, 2)], 1)
                    net(ids).square().sum().backward()
                    like = net.out(nn.functional.embedding(ids, table).sum(1))[:, 0]
                    optimizer.zero_grad()
                    like.square().sum().backward()
                    optimizer.step()
                    sync.step()
                with torch.no_grad():
                    torch.testing.assert_close(net.rows(every), table.data, rtol=1e-4, atol=1e-5)

    def test_all_ranks_train_one_table(self):
        """Each rank pushes to the rows of others alone, so that sums are exact."""
        def body(rank):
            torch.manual_seed(rank)
            net = Net(300, 2, optimizer="sgd", lr=1.0, spread=0.0)
            pushed = torch.zeros(300)
            with descant.attach(net, plan="shadow-ma") as sync:
                others = torch.tensor([row for row in range(300) if row % 3 != rank])
                for step in range(30):
                    ids = others[torch.randint(len(others), (20,))]
                    if step % 2:
                        net.rows.prefetch(ids)
                    net.rows(ids).sum().neg().backward()
                    pushed += torch.bincount(ids, minlength=300)
                    sync.step()
                sync.finish()
                with torch.no_grad():
                    table = net.rows(torch.arange(300))
                return pushed.tolist(), table.tolist(), sync.stats()["rows_served"] > 0
        said = over_tcp(3, body)
        total = sum(torch.tensor(pushed) for pushed, _, _ in said)
        for _, table, served in said:
            torch.testing.assert_close(torch.tensor(table), total[:, None].expand(-1, 2))
            self.assertTrue(served)

    def rows_of_others(self, ends):
        """Three ranks push; rank 2 goes in the midst, by ends(net, sync), and the others train on.
        They return what each has pushed, what it saves, and the table at the end."""
        def body(rank):
            torch.manual_seed(rank)
            net = Net(300, 2, optimizer="sgd", lr=1.0, spread=0.0)
            pushed = torch.zeros(300)
            with descant.attach(net, plan="none", rows_move=True, rows_replica=1.0) as sync:
                for step in range(40):
                    ids = torch.randint(300, (20,)) if step else torch.arange(300)
                    net.rows(ids).sum().neg().backward()
                    pushed += torch.bincount(ids, minlength=300)
                    sync.step()
                    if step == 20 and sync.any(False) is False and rank == 2:
                        ends(net, sync)
                        return pushed.tolist(), [], None
                with sync.hold_rows():
                    saved = [row for piece in net.rows.saved() for row in piece["rows"].tolist()]
                sync.finish()
                with torch.no_grad():
                    return pushed.tolist(), saved, net.rows(torch.arange(300)).tolist()
        return over_tcp(3, body)

    def test_a_rank_parts_and_its_rows_go_to_others(self):
        def parts(_net, sync):
            self.assertTrue(sync.part())
        said = self.rows_of_others(parts)
        total = sum(torch.tensor(pushed) for pushed, _, _ in said)
        for _, _, table in said[:2]:
            torch.testing.assert_close(torch.tensor(table), total[:, None].expand(-1, 2))
        self.assertEqual(sorted(said[0][1] + said[1][1]), list(range(300)))

    def test_a_rank_is_killed_and_its_rows_are_with_others(self):
        def dies(_net, _sync):
            time.sleep(2)                   # longer than replicas may be old
            os.kill(os.getpid(), signal.SIGKILL)
        said = self.rows_of_others(dies)
        self.assertIsNone(said[2])
        self.assertEqual(sorted(said[0][1] + said[1][1]), list(range(300)))
        for _, _, table in said[:2]:
            torch.testing.assert_close(torch.tensor(table), torch.tensor(said[0][2]))
        least = sum(torch.tensor(pushed) for pushed, _, _ in said[:2]) * 0.9
        self.assertGreater(torch.tensor(said[0][2])[:, 0].sum(), least.sum())

    def test_all_hear_of_one_that_fails_while_rows_are_held(self):
        def body(rank):
            net = Net(300, 2)
            with descant.attach(net, plan="none", rows_move=True) as sync:
                try:
                    with sync.hold_rows():
                        if rank == 1:
                            raise ValueError("no room")
                except (RuntimeError, ValueError) as error:
                    said = str(error)
                return said, sync.any(False)
        said = over_tcp(2, body)
        self.assertEqual(said, [("another trainer has failed while rows were held", False),
                                ("no room", False)])

    def test_a_checkpoint_goes_to_another_number_of_ranks(self):
        def save(rank):
            torch.manual_seed(rank)
            net = Net(100, 3)
            with descant.attach(net, plan="none"):
                for _ in range(10):
                    net(torch.randint(100, (5, 2))).sum().backward()
                return list(net.rows.saved())

        def load(rank):
            net = Net(100, 3)
            with descant.attach(net, plan="none") as sync:
                for piece in pieces:
                    net.rows.load(piece)
                sync.any(False)             # all have loaded
                with torch.no_grad():
                    return net.rows(torch.arange(100)).tolist()
        said = over_tcp(2, save)
        pieces = [piece for each in said for piece in each]
        rows = torch.cat([piece["rows"] for piece in pieces])
        self.assertEqual(len(rows), len(rows.unique()))
        one, three = together(1, load)[0], over_tcp(3, load)
        for each in three:
            self.assertEqual(each, one)
        values = torch.tensor(one)
        for piece in pieces:
            torch.testing.assert_close(values[piece["rows"]], piece["records"][:, :3])

    def test_a_table_grows_by_what_is_pushed(self):
        """Ids are any numbers, negative ones, too; and checkpoints have the rows that are there."""
        def grown():
            return Net(None, 3, memory=4 << 20, optimizer="sgd", lr=1.0)

        def save(rank):
            net = grown()
            with descant.attach(net, plan="none") as sync:
                net.rows(ids).sum().neg().backward()
                sync.finish()
                with torch.no_grad():
                    return net.rows(ids).tolist(), list(net.rows.saved()), sync.stats()["rows_live"]

        def load(rank):
            net = grown()
            with descant.attach(net, plan="none") as sync:
                for piece in pieces:
                    net.rows.load(piece)
                sync.any(False)             # all have loaded
                with torch.no_grad():
                    return net.rows(ids).tolist()
        ids = torch.tensor([5, -1, 1 << 62, -(1 << 63), 0])
        net = grown()
        with descant.attach(net, plan="none") as sync:
            with torch.no_grad():
                first = net.rows(ids)
            self.assertEqual(sync.stats()["rows_live"], 0)
        said = over_tcp(2, save)
        self.assertEqual(sum(live for _, _, live in said), 5)
        pieces = [piece for _, saved, _ in said for piece in saved]
        self.assertEqual(sorted(torch.cat([piece["rows"] for piece in pieces]).tolist()),
                         sorted(ids.tolist()))
        for values, _, _ in said:
            torch.testing.assert_close(torch.tensor(values), first + 2)
        for each in together(1, load) + over_tcp(3, load):
            self.assertEqual(each, said[0][0])

    def test_rows_are_admitted_and_evicted(self):
        net = Net(None, 2, memory=1 << 20, admit=0.5)
        with descant.attach(net, plan="none") as sync:
            net.rows(torch.arange(1000)).sum().backward()
            stats = sync.stats()
            self.assertEqual(stats["rows_live"] + stats["rows_refused"], 1000)
            self.assertTrue(400 < stats["rows_live"] < 600)
            for k in range(60):
                net.rows(torch.arange(1000 * k, 1000 * k + 1000)).sum().backward()
            stats = sync.stats()
            self.assertTrue(stats["rows_evicted"] > 0)
            self.assertTrue(stats["rows_live"] < (1 << 20) / 36)

    def test_copies_have_own_pushes(self):
        """Each rank has rows of its own, reads exactly what it has pushed, and mostly from copies;
        after finish it reads what the other one has pushed, too."""
        def body(rank):
            net = Net(64, 2, optimizer="sgd", lr=1.0, spread=0.0, age=3600)
            with descant.attach(net, plan="none") as sync:
                mine = torch.arange(1 - rank, 64, 2)         # the other one owns them
                for step in range(30):
                    rows = net.rows(mine)
                    if not torch.equal(rows.detach(), torch.full((32, 2), -float(step))):
                        return step
                    rows.sum().backward()
                    sync.step()
                cached = sync.stats()["rows_cached"]
                sync.finish()
                with torch.no_grad():
                    every = net.rows(torch.arange(64))
                return bool((every == -30).all()), cached > 100, sync.stats()["rows_cached"] == cached

        for said in over_tcp(2, body):
            self.assertEqual(said, (True, True, True))

    def test_what_was_asked_for_ahead_is_used(self):
        """Each batch is fetched once, however many are under way, and with others in between."""
        net = Net(50, 2)
        with descant.attach(net, plan="none") as sync:
            batches = [torch.randint(50, (6,)) for _ in range(12)]
            for ids in batches[:3]:
                net.rows.prefetch(ids)
            for k, ids in enumerate(batches):
                if k + 3 < len(batches):
                    net.rows.prefetch(batches[k + 3])
                if k % 4 == 0:
                    net.eval()
                    net.rows(torch.arange(50))
                    net.train()
                net.rows(ids).sum().backward()
            each = sum(len(ids.unique()) for ids in batches)
            self.assertEqual(sync.stats()["rows_fetched"], each + 3 * 50)
            self.assertEqual(sync.stats()["rows_pushed"], each)

    def test_tables_alone(self):
        """A model may have nothing else to be trained; and it begins anew in another job."""
        model = nn.Sequential(descant.Embedding(9, 2, spread=0.0), nn.ReLU())
        for _ in range(2):
            with descant.attach(model, plan="shadow-easgd") as sync:
                before = model[0](torch.arange(9)).detach()
                self.assertTrue(torch.equal(before, torch.zeros(9, 2)))
                model[0](torch.arange(3)).sum().backward()
                sync.step()

    def test_a_copy_has_no_rows(self):
        net = Net(5, 2)
        with descant.attach(net, plan="none"):
            net(torch.tensor([[1]]))
            for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
                refused(self, lambda: other(torch.tensor([[1]])), "attach")
                self.assertEqual(other.rows.lr, net.rows.lr)

    def test_what_needs_no_gradient_gives_none(self):
        net = Net(20, 2)
        with descant.attach(net, plan="none") as sync:
            every = torch.arange(20)
            with torch.no_grad():
                before = net.rows(every)
            net.eval()
            self.assertFalse(net.rows(every).requires_grad)
            net.train()
            net(every[:, None])             # a graph that is thrown away
            net.rows.prefetch(every)        # and rows that nobody uses
            net.rows(every[:5])
            self.assertEqual(net.rows(torch.zeros(0, dtype=torch.int64)).shape, (0, 2))
            out = net.rows(every[:3])
            out.sum().backward(retain_graph=True)
            out.sum().backward()            # the first gradient was pushed
            self.assertEqual(sync.stats()["rows_pushed"], 3)
            with torch.no_grad():
                self.assertTrue(torch.equal(net.rows(every)[3:], before[3:]))

    def bags(self, **more):
        """descant.EmbeddingBag and nn.EmbeddingBag with the same values, under way together."""
        mine = descant.EmbeddingBag(30, 3, optimizer="sgd", lr=0.1, **more)
        sync = descant.attach(mine, plan="none")
        like = nn.EmbeddingBag(30, 3, **more)
        with torch.no_grad():
            every = torch.arange(30)
            like.weight.copy_(descant.Embedding.forward(mine, every))
        return sync, mine, like

    def test_bags_are_those_of_nn_embeddingbag(self):
        """Values, gradients of weights, and steps, for each mode and form of ids, empty bags, too."""
        flat = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9, 5, 5])
        forms = [(flat.view(2, 5), None), (flat, torch.tensor([0, 4])), (flat, torch.tensor([0, 0, 3, 10])),
                 (flat[:0], torch.tensor([0, 0])), (flat.int().view(5, 2), None),
                 (flat.int(), torch.tensor([0, 7], dtype=torch.int32))]
        for more in ({"mode": "sum"}, {"mode": "mean"}, {"mode": "sum", "padding_idx": 5},
                     {"mode": "mean", "padding_idx": -25}, {"mode": "sum", "include_last_offset": True}):
            sync, mine, like = self.bags(**more)
            with sync:
                for weighted in (False, True)[:1 + (more["mode"] == "sum")]:
                    for ids, offsets in forms:
                        if more.get("include_last_offset"):
                            if offsets is None:
                                continue
                            offsets = torch.cat([offsets, offsets.new_tensor([ids.numel()])])
                        weights = [torch.linspace(-1, 2, ids.numel()).view(ids.shape).requires_grad_()
                                   for _ in range(2)] if weighted else [None, None]
                        like.zero_grad()
                        a, b = mine(ids, offsets, weights[0]), like(ids, offsets, weights[1])
                        torch.testing.assert_close(a, b)
                        for out in a, b:
                            (out * torch.linspace(1, 3, out.numel()).view(out.shape)).sum().backward()
                        if weighted:
                            torch.testing.assert_close(weights[0].grad, weights[1].grad)
                        with torch.no_grad():
                            like.weight -= 0.1 * like.weight.grad
                            used = torch.tensor([row for row in range(30) if row != like.padding_idx])
                            torch.testing.assert_close(descant.Embedding.forward(mine, used),
                                                       like.weight[used])

    def test_padding_is_that_of_nn_embedding(self):
        """It reads as zeros, and is neither fetched nor pushed; a table that grows has it, too."""
        for rows, padding, more in ((20, 0, {}), (20, -1, {}), (None, -1, {"memory": 4 << 20})):
            net = descant.Embedding(rows, 2, optimizer="sgd", lr=1.0, padding_idx=padding, **more)
            with descant.attach(net, plan="none") as sync:
                place = padding if rows is None else padding % rows
                self.assertEqual(net.padding_idx, place)
                ids = torch.tensor([[3, place, 4], [place, place, 3]])
                used = torch.tensor([3, 4])
                with torch.no_grad():
                    before = net(used)
                like = nn.Embedding(20, 2, padding_idx=place % 20)
                with torch.no_grad():
                    like.weight[used] = before
                net.prefetch(ids)
                out, wanted = net(ids), like(ids % 20)
                torch.testing.assert_close(out, wanted)
                self.assertTrue(bool((out[1, 0] == 0).all()))
                out.sum().backward()
                wanted.sum().backward()
                with torch.no_grad():
                    torch.testing.assert_close(net(used), before - like.weight.grad[used])
                stats = sync.stats()
                self.assertEqual((stats["rows_fetched"], stats["rows_pushed"]), (6, 2))
                self.assertTrue(bool((net(ids[1, :2]) == 0).all()))
                self.assertEqual(sync.stats()["rows_fetched"], 6)

    def test_bad_shapes_are_refused_at_once(self):
        """Before attach, by the name of the argument."""
        for says, rows, width, more in (
                ("4096", 5, 4097, {}), ("2^40", (1 << 40) + 1, 2, {}), ("floats", 5, 0, {}),
                ("momentum=1", 5, 2, {"momentum": 1.0}), ("betas", 5, 2, {"betas": (0.9, 1.0)}),
                ("eps=-1", 5, 2, {"eps": -1.0}), ("spread=nan", 5, 2, {"spread": float("nan")}),
                ("seed=-1", 5, 2, {"seed": -1}), ("age=inf", 5, 2, {"age": float("inf")}),
                ("cached=-1", 5, 2, {"cached": -1}), ("8191", 5, 4096, {"age": 1, "optimizer": "adagrad"}),
                ("admit=0", None, 2, {"memory": 1 << 20, "admit": 0}),
                ("unused_s=-1", None, 2, {"memory": 1 << 20, "unused_s": -1}),
                ("memory=0", None, 2, {"memory": 0}), ("padding_idx=5", 5, 2, {"padding_idx": 5}),
                ("padding_idx=-6", 5, 2, {"padding_idx": -6})):
            refused(self, lambda: descant.Embedding(rows, width, **more), says)
        refused(self, lambda: descant.Embedding(5.5, 2), "integer", kind=TypeError)
        refused(self, lambda: descant.EmbeddingBag(5, 2, mode="max"), "sum, mean")
        self.assertIn("padding_idx=4", repr(descant.Embedding(5, 2, padding_idx=-1)))
        self.assertIn("mode=sum", repr(descant.EmbeddingBag(5, 2, mode="sum")))
        descant.Embedding(5, 4095, age=1)       # a copy has 8190 floats

    def test_what_cannot_be_is_refused(self):
        refused(self, lambda: descant.Embedding(5, 2, optimizer="lion"), "lion", "adagrad")
        refused(self, lambda: descant.Embedding(0, 2), "0")
        refused(self, lambda: descant.Embedding(None, 2), "memory=BYTES")
        refused(self, lambda: descant.Embedding(5, 2, memory=1 << 30), "that grow")
        self.assertIn("None, 2", repr(descant.Embedding(None, 2, memory=1 << 30)))
        refused(self, lambda: descant.attach(Net(None, 2, memory=5), plan="none"), "at least, not 5")
        net = Net(5, 2)
        refused(self, lambda: net(torch.tensor([[1]])), "attach")
        self.assertIn("5, 2", repr(net))
        with descant.attach(net, plan="none"):
            refused(self, lambda: net(torch.tensor([[5]])), "no row 5")
            refused(self, lambda: net(torch.tensor([[-1]])), "no row")
            of = next(iter(trained(net).rows.saved()))["of"]
            refused(self, lambda: net.rows.load({"rows": [1], "records": [[1.0]], "of": of}), "4 floats")
            refused(self, lambda: net.rows.load({"rows": [1], "of": "6 rows"}), "6 rows", "5 rows")
            refused(self, lambda: net.rows.load([1]), "another kind")
            refused(self, lambda: net(torch.tensor([[0.5]])), "whole numbers", kind=TypeError)
        refused(self, lambda: net(torch.tensor([[1]])), "closed")


if __name__ == "__main__":
    unittest.main()
