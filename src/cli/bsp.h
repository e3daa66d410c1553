/* SPDX-License-Identifier: MIT */
/* descant bsp: what its files call of each other. */
#ifndef CLI_BSP_H
#define CLI_BSP_H

#include "cli/cli.h"

int cli_bsp_status(const struct cli *cli);

#endif
