/* SPDX-License-Identifier: MIT */
/* The program's main; commands are in cli.c, where tests can call them. */
#include "cli/cli.h"

int main(int argc, char **argv)
{
    return cli_main(argc, argv, stdout, stderr);
}
