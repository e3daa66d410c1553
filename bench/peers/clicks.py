# SPDX-License-Identifier: MIT
"""The defaults of `descant train --model linear` and `fm` beside Vowpal Wabbit's: nothing is tuned, one
pass. clicks.py DESCANT FOLDER [FILE ...] makes the sets in FOLDER, which may hold what clicks.sh has
taken out of packages (weka, heart_scale, agaricus), and prints a Markdown table. Other FILEs are
libsvm's or Vowpal Wabbit's format, with labels of two kinds.

Small sets are cut into 70 % and 30 % after a shuffle, 16 times, and figures are means over these.
Held-out is the log loss of the final model; progressive, that of each example before it is learnt (the
intercept of Descant begins with the share of positives in the first chunk, which flatters it there).
"""
import csv
import glob
import math
import os
import random
import re
import subprocess
import sys

from sklearn import datasets
from vowpalwabbit import pyvw

SPLITS = 16


# --- sets: a name and rows of (0 or 1, [(feature, value), ...])

def dense(features, labels):
    return [(int(y), [(k + 1, float(x)) for k, x in enumerate(row) if x])
            for row, y in zip(features, labels)]


def of_sklearn():
    cancer, digits = datasets.load_breast_cancer(), datasets.load_digits()
    wine, iris = datasets.load_wine(), datasets.load_iris()
    yield "breast_cancer", dense(cancer.data, cancer.target)
    scaled = (cancer.data - cancer.data.mean(0)) / cancer.data.std(0)
    yield "breast_cancer, scaled", dense(scaled, cancer.target)
    yield "digits, odd", dense(digits.data, digits.target % 2)
    yield "digits, 8", dense(digits.data, digits.target == 8)
    yield "wine, 0", dense(wine.data, wine.target == 0)
    yield "wine, 1", dense(wine.data, wine.target == 1)
    yield "iris, 1", dense(iris.data, iris.target == 1)


def plain(*paths):
    """Files of libsvm's or of Vowpal Wabbit's format, whose namespaces become features of all rows."""
    ids = {}
    for path in paths:
        for line in open(path):
            label, *words = line.replace("|", " ").split()
            pairs = [word.partition(":") for word in words]
            yield int(float(label) > 0), sorted(
                {ids.setdefault(name, len(ids) + 1): float(value or 1)
                 for name, _, value in pairs}.items())


def arff(path):
    kinds, rows, in_data = [], [], False
    for line in open(path, errors="replace"):
        line = line.strip()
        if in_data and line and line[0] != "%":
            rows.append(next(csv.reader([line], quotechar="'", escapechar="\\",
                                        skipinitialspace=True)))
        elif line.lower().startswith("@attribute"):
            kinds.append(re.match(r"@attribute\s+('[^']*'|\S+)\s+(.*)", line, re.I)[2].strip())
        in_data |= line.lower().startswith("@data")
    return kinds, rows


def of_weka(path, positive):
    kinds, rows = arff(path)
    ids = {}
    for row in rows:
        features = []
        for k, (kind, value) in enumerate(zip(kinds[:-1], row[:-1])):
            key, number = ((k, value), 1.0) if kind.startswith("{") else ((k, ""), value)
            if value != "?" and float(number):
                features.append((ids.setdefault(key, len(ids) + 1), float(number)))
        yield int(row[-1].strip("'") == positive), sorted(features)


def words_of_weka(paths):
    ids = {}
    for path in paths:
        for row in arff(path)[1]:
            words = set(re.findall("[a-z]+", row[0].lower()))
            value = round(max(len(words), 1) ** -0.5, 6)
            yield int(row[-1] == "1"), sorted((ids.setdefault(w, len(ids) + 1), value)
                                              for w in words)


def of_packages(folder):
    for name, positive in (("vote", "democrat"), ("credit-g", "good"), ("ionosphere", "g"),
                           ("diabetes", "tested_positive"), ("supermarket", "high"),
                           ("breast-cancer", "recurrence-events")):
        for path in glob.glob(f"{folder}/**/{name}.arff", recursive=True):
            yield name, of_weka(path, positive)
    for name in ("ReutersCorn", "ReutersGrain"):
        paths = sorted(glob.glob(f"{folder}/**/{name}-t*.arff", recursive=True))
        if paths:
            yield name, words_of_weka(paths)
    for path in glob.glob(f"{folder}/**/heart_scale", recursive=True):
        yield "heart_scale", plain(path)
    paths = sorted(glob.glob(f"{folder}/**/agaricus.txt.t*", recursive=True))
    if paths:
        yield "agaricus", plain(*paths)


# --- one pass of each

def log_loss(score, label):
    z = -score if label else score
    return max(z, 0) + math.log1p(math.exp(-abs(z)))


def vowpal_wabbit(train, test):
    model = pyvw.Workspace("--loss_function logistic --link logistic --quiet")
    means = []
    for path, learns in ((train, True), (test, False)):
        total = n = 0
        for line in open(path):
            example = model.example(line)
            p = min(max(model.predict(example), 1e-15), 1 - 1e-15)
            total += log_loss(math.log(p / (1 - p)), line[0] == "1")
            if learns:
                model.learn(example)
            model.finish_example(example)
            n += 1
        means.append(total / n)
    model.finish()
    return means


def descant(program, model, train, test):
    said = subprocess.run([program, "train", "--quiet", "--model", model, "--data", train,
                           "--eval", test], capture_output=True, text=True, check=True).stdout
    return [float(re.search(what + r" +([0-9.]+)", said)[1])
            for what in ("loss while training", "held-out loss")]


def write(path, rows):
    with open(path + ".libsvm", "w") as ours, open(path + ".vw", "w") as theirs:
        for label, features in rows:
            text = " ".join(f"{k}:{value:g}" for k, value in features)
            ours.write(f"{label} {text}\n")
            theirs.write(f"{1 if label else -1} | {text}\n")


def write_clicks(tsv, path):
    """What Descant's reader makes of Criteo's format: logarithms of numbers, and tokens."""
    with open(path, "w") as out:
        for line in open(tsv):
            columns = line.rstrip("\n").split("\t")
            numbers = [(k, float(x)) for k, x in enumerate(columns[1:14]) if x]
            features = [f"i{k}:{math.copysign(math.log1p(abs(x)), x):g}" for k, x in numbers if x]
            features += [f"c{k}_{x}" for k, x in enumerate(columns[14:]) if x]
            out.write(f"{1 if columns[0] == '1' else -1} | {' '.join(features)}\n")


def measure(program, train, test, ours):
    return [vowpal_wabbit(train + ".vw", test + ".vw")] + \
           [descant(program, model, train + ours, test + ours) for model in ("linear", "fm")]


def small_set(program, folder, rows):
    rows, sums = list(rows), [[0, 0], [0, 0], [0, 0]]
    for seed in range(1, SPLITS + 1):
        random.Random(seed).shuffle(rows)
        cut = len(rows) * 7 // 10
        write(f"{folder}/train", rows[:cut])
        write(f"{folder}/test", rows[cut:])
        for total, each in zip(sums, measure(program, f"{folder}/train", f"{folder}/test",
                                             ".libsvm")):
            for k in range(2):
                total[k] += each[k] / SPLITS
    return len(rows), sums


def clicks(program, folder):
    for part, n, seed in (("train", 300000, 1), ("test", 50000, 2)):
        path = f"{folder}/ctr.{part}"
        subprocess.run([program, "gen", "ctr", "--rows", str(n), "--seed", str(seed), "--out",
                        path + ".tsv"], check=True, stderr=subprocess.DEVNULL)
        write_clicks(path + ".tsv", path + ".vw")
    return 350000, measure(program, f"{folder}/ctr.train", f"{folder}/ctr.test", ".tsv")


def main(program, folder, *files):
    print("| set | rows | Vowpal Wabbit | linear | ÷ | fm | ÷ | progressive: Vowpal Wabbit | "
          "linear | ÷ | fm | ÷ |\n|" + "---|" * 12)
    ratios = [[], [], [], []]

    def show(name, n, figures):
        cells = [name, str(n)]
        for k in (1, 0):
            peer = figures[0][k]
            cells.append(f"{peer:.4f}")
            for m in (1, 2):
                ratios[2 * (1 - k) + m - 1].append(figures[m][k] / peer)
                cells += [f"{figures[m][k]:.4f}", f"{figures[m][k] / peer:.3f}"]
        print("| " + " | ".join(cells) + " |", flush=True)

    sets = list(of_sklearn()) + list(of_packages(folder)) + \
        [(os.path.basename(path), plain(path)) for path in files]
    for name, rows in sets:
        show(name, *small_set(program, folder, rows))
    show("gen ctr", *clicks(program, folder))
    for name, column in zip(("linear", "fm", "linear, progressive", "fm, progressive"), ratios):
        mean = math.exp(sum(map(math.log, column)) / len(column))
        print(f"\n{name}: geometric mean {mean:.3f}, worst {max(column):.3f}, better on "
              f"{sum(r < 1 for r in column)} of {len(column)}, worse by more than 1 % on "
              f"{sum(r > 1.01 for r in column)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
