/* SPDX-License-Identifier: MIT */
/* The way into descant-bench; everything is in bench.c, where tests can call it. */
#include "bench.h"

int main(int argc, char **argv)
{
    return bench_main(argc, argv, stdout, stderr);
}
