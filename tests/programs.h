/* SPDX-License-Identifier: MIT */
/* The programs, called as functions: "descant bench" is descant-bench without the exec. */
#ifndef PROGRAMS_H
#define PROGRAMS_H

#include "bench.h"

#include <string.h>

static inline int call_program(int argc, char **argv, FILE *out, FILE *err)
{
    bool bench = argc > 1 && strcmp(argv[1], "bench") == 0;
    return bench ? bench_main(argc - 1, argv + 1, out, err)
                 : cli_main(argc, argv, out, err);
}

#endif
