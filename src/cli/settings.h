/* SPDX-License-Identifier: MIT */
/* A command line of settings (base/settings.h). */
#ifndef CLI_SETTINGS_H
#define CLI_SETTINGS_H

#include "base/settings.h"
#include "cli/cli.h"

/* "--name value", "--name=value"; --config and its value are passed over. */
int settings_parse(const struct cli *cli, const struct setting *table, size_t n, void *into);
const char *settings_config(const struct cli *cli);     /* what follows --config, or NULL */
bool settings_wants_help(const struct cli *cli);
void settings_help(FILE *out, const struct setting *table, size_t n, const void *defaults);

#endif
