# SPDX-License-Identifier: MIT
"""Writes tests/block_torch.h: what PyTorch's SGD makes of the rule `block`.

    python3 -m venv /tmp/venv
    /tmp/venv/bin/pip install torch==2.13.0 numpy
    /tmp/venv/bin/python tests/block_torch.py > tests/block_torch.h

The global version G is a parameter of torch.optim.SGD. In each round every trainer begins at G
and drifts away from it; the gradient is G - mean(replicas), the outer difference with its sign
turned, so that a step of SGD goes towards the mean. The starts and drifts are whole multiples
of 1/4096, drawn with a fixed seed, so that C and Python have the same bits. All is float32.
"""
import torch

N, TRAINERS, ROUNDS, UNIT, SEED = 19, 3, 10, 4096, 20203477
# (rate, momentum, nesterov)
SETTINGS = [(1.0, 0.0, False), (0.5, 0.0, False), (1.0, 0.5, False), (0.7, 0.9, False),
            (0.7, 0.9, True), (0.4, 0.3, True), (1.0, 0.75, True)]


def run(start, drift, rate, momentum, nesterov):
    """G after each round, and SGD's momentum buffer after the last one (None without)."""
    G = torch.nn.Parameter((start / UNIT).to(torch.float32))
    sgd = torch.optim.SGD([G], lr=rate, momentum=momentum, nesterov=nesterov)
    rounds = []
    for r in range(ROUNDS):
        with torch.no_grad():
            replicas = G - (drift[r] / UNIT).to(torch.float32)      # (TRAINERS, N)
            G.grad = G - replicas.mean(dim=0)
        sgd.step()
        rounds.append(G.detach().clone())
    return rounds, sgd.state[G].get("momentum_buffer")


def rows(numbers, form, indent, end=","):
    """The numbers in braces, as lines of at most 90 columns."""
    line = " " * indent + "{"
    for i, number in enumerate(numbers):
        piece = form(number) + ("}" + end if i == len(numbers) - 1 else ",")
        if len(line) + 1 + len(piece) > 90:
            print(line)
            line = " " * (indent + 1)
        line += piece if line.endswith("{") else " " + piece if line.strip() else piece
    print(line)


def figure(x):
    text = f"{float(x):.9g}"
    return (text if "." in text or "e" in text else text + ".0") + "f"


def main():
    chance = torch.Generator().manual_seed(SEED)
    sign = 1 - 2 * torch.randint(0, 2, (N,), generator=chance)
    start = sign * torch.randint(2 * UNIT, 4 * UNIT, (N,), generator=chance)
    drift = torch.randint(-UNIT // 16, UNIT // 16 + 1, (ROUNDS, TRAINERS, N), generator=chance)
    print("/* SPDX-License-Identifier: MIT */")
    print("/* Written by block_torch.py with PyTorch %s; not to be changed by hand. */"
          % torch.__version__.split("+")[0])
    print("#ifndef BLOCK_TORCH_H\n#define BLOCK_TORCH_H\n")
    print("enum { TORCH_N = %d, TORCH_TRAINERS = %d, TORCH_ROUNDS = %d, TORCH_UNIT = %d };\n"
          % (N, TRAINERS, ROUNDS, UNIT))
    print("/* In 1/TORCH_UNIT: G at first, and how far each trainer goes down in each round. */")
    print("static const int torch_start[TORCH_N] =")
    rows(start.tolist(), str, 4, ";")
    print("static const int torch_drift[TORCH_ROUNDS][TORCH_TRAINERS][TORCH_N] = {")
    for r in range(ROUNDS):
        print("    {")
        for i in range(TRAINERS):
            rows(drift[r][i].tolist(), str, 8)
        print("    },")
    print("};\n")
    print("static const struct torch_run {")
    print("    const char *plan;                   /* changes to a plan of block */")
    print("    float G[TORCH_ROUNDS][TORCH_N];     /* after each round */")
    print("    float buffer[TORCH_N];              /* the momentum at the end; 0 without */")
    print("} torch_runs[] = {")
    for rate, momentum, nesterov in SETTINGS:
        rounds, buffer = run(start, drift, rate, momentum, nesterov)
        print('    {"rate=%g,momentum=%g,nesterov=%d",' % (rate, momentum, nesterov))
        print("     {")
        for G in rounds:
            rows(G.tolist(), figure, 6)
        print("     },")
        rows([0.0] * N if buffer is None else buffer.tolist(), figure, 5)
        print("    },")
    print("};\n\n#endif")


main()
