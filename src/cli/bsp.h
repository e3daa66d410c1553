/* SPDX-License-Identifier: MIT */
/* Calls between the files of descant bsp. */
#ifndef CLI_BSP_H
#define CLI_BSP_H

#include "cli/cli.h"

int cli_bsp_status(const struct cli *cli);

#endif
