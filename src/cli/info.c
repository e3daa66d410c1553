/* SPDX-License-Identifier: MIT */
/* descant info: facts about a build and a machine that a question for help needs; or
 * facts about files (files/tell.c). Without a word it prints the first, with words the
 * second: each word is a file. No module is loaded and no job is opened, so that info
 * also runs where a module or a launcher is broken. */
#include "cli/cli.h"
#include "fabric/fabric.h"
#ifdef DESCANT_TRAIN
#include "files/files.h"
#endif
#include "kernels/kernels.h"
#include "link/mpi.h"
#include "link/tls.h"
#include "sync/launcher.h"

#include <limits.h>
#include <string.h>

/* The name of the first processor. Kernels of some architectures give none: "unknown". */
static void cpu_name(char *name, size_t room)
{
    char line[256];
    snprintf(name, room, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':')) {
            snprintf(name, room, "%s", strchr(line, ':') + 2);
            name[strcspn(name, "\n")] = 0;
            break;
        }
    if (file)
        fclose(file);
}

/* Where each module is that the program would load; it is looked up, and not loaded. */
static void say_modules(const struct cli *cli)
{
    char path[PATH_MAX];
    for (int k = 0; k < MPI_LIBRARIES; k++)
        cli_say(cli->out, mpi_module_name((enum mpi_library)k), "%s",
                mpi_module_find((enum mpi_library)k, path, sizeof path) ? path
                : "no module: the address mpi cannot use it");
    cli_say(cli->out, "TLS", "%s",
            tls_module_find(path, sizeof path) ? path
            : "no module: a job between hosts can have no secret and no certificates");
}

/* Describes each file. One that cannot be described is passed over, and makes the status
 * a failure. */
static int tell(const struct cli *cli)
{
#ifdef DESCANT_TRAIN
    bool good = true;
    for (int k = 0; k < cli->argc; k++) {
        fputs(k ? "\n" : "", cli->out);
        good &= file_tell(cli->argv[k], cli->out, cli->err, &cli->log);
    }
    return good ? CLI_DONE : CLI_FAILED;
#else
    return cli_bad_use(cli, "what '%s' is only a build with training can say",
                       cli->argv[0]);
#endif
}

int cli_info(const struct cli *cli)
{
    char cpu[128];
    if (cli->argc > 0 && cli_is_help(cli->argv[0])) {
        fputs("usage: descant info [FILE ...]\nof the program and this machine; or what "
              "each FILE is and has: a checkpoint, a cache, a log or data\n",
              cli->out);
        return CLI_DONE;
    }
    for (int i = 0; i < cli->argc; i++)
        if (cli->argv[i][0] == '-')
            return cli_bad_use(cli, "'%s': info takes names of files, and no options",
                               cli->argv[i]);
    if (cli->argc > 0)
        return tell(cli);
    cpu_name(cpu, sizeof cpu);
    cli_say(cli->out, "version", "%s", descant_version());
#if defined(__clang__)
    cli_say(cli->out, "compiler", "clang %s", __clang_version__);
#else
    cli_say(cli->out, "compiler", "gcc %s", __VERSION__);
#endif
    cli_say(cli->out, "cpu", "%s", cpu);
    cli_say(cli->out, "kernels", "%s", kernels_best()->name);
    cli_say(cli->out, "cores", "%.2f", machine_cores());
    cli_say(cli->out, "memory free", "%.2f GiB",
            (double)machine_memory_free() / (double)(1 << 30));
    cli_say(cli->out, "page", "%zu bytes", machine_page());
    for (int i = 0; fabric_types[i]; i++)
        cli_say(cli->out, i ? "" : "fabrics", "%-5s %-34s %s", fabric_types[i]->name,
                fabric_types[i]->address, fabric_types[i]->help);
    say_modules(cli);
    return CLI_DONE;
}
