#!/bin/bash
# SPDX-License-Identifier: MIT
# clicks.py with what it needs, in the build folder: Vowpal Wabbit and scikit-learn from PyPI, and data out
# of Debian's packages weka and liblinear-tools and its source of xgboost (agaricus), as far as apt has them.
# Nothing is installed elsewhere. Arguments: more files for clicks.py.
set -eu
build=$(realpath "${BUILD:-build/gcc}")
here=$(realpath "$(dirname "$0")")
folder=$build/peers
mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial" "$folder/data"
files=()
for file; do files+=("$(realpath "$file")"); done
[ -e "$folder/venv/done" ] || { python3 -m venv "$folder/venv" &&
    "$folder/venv/bin/pip" install -q vowpalwabbit scikit-learn && touch "$folder/venv/done"; }

fetch() (
    cd "$folder/apt"
    for package in weka liblinear-tools; do
        apt-get download -q "$package" >/dev/null 2>&1 && dpkg -x "$package"_*.deb "$folder/data" ||
            echo "bench-peers: without Debian's $package"
    done
    sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/*.sources >all.sources 2>/dev/null || true
    sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >all.list 2>/dev/null || true
    options=(-o Dir::Etc::sourcelist="$PWD/all.list" -o Dir::Etc::sourceparts="$PWD"
        -o Dir::State::Lists="$PWD/lists" -o Dir::Cache="$PWD" -o APT::Sandbox::User=root)
    apt-get "${options[@]}" -q update >/dev/null 2>&1 &&
        apt-get "${options[@]}" -q source --download-only xgboost >/dev/null 2>&1 &&
        tar xf xgboost_*.orig.tar.* -C "$folder/data" --wildcards '*/demo/data/agaricus*' ||
        echo "bench-peers: without Debian's source of xgboost"
)
[ -e "$folder/data/done" ] || { fetch; touch "$folder/data/done"; }
exec "$folder/venv/bin/python" "$here/clicks.py" "$build/descant" "$folder/data" "${files[@]}"
