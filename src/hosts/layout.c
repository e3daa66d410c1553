/* SPDX-License-Identifier: MIT */
/* The host of each rank, and the place where ranks meet. Ranks of one host have
 * consecutive numbers, and rank 0 is on the first host of the list.
 *
 * If all ranks are on one host, and no port was asked for, they meet in its memory. Else
 * they meet over TCP at the first host, under its name in the list, without the user: so
 * the other hosts must know that name. The port is chosen by chance, unless one is given,
 * so that two runs on the same hosts do not meet each other. */
#include "hosts/hosts.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>

enum { PORTS_FROM = 20000, PORTS = 12000 };     /* below the ports that kernels choose */

static bool is_loopback(const char *name)
{
    return strcasecmp(name, "localhost") == 0 || strcmp(name, "127.0.0.1") == 0 ||
           strcmp(name, "::1") == 0;
}

/* Whether the text can be a word for ssh, and for other hosts a part of an address. */
static bool is_name(const char *name)
{
    static const char good[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:@%-";
    return *name != '-' && strspn(name, good) == strlen(name);
}

static descant_status take_host(struct layout *l, const char *name, const char *here,
                                const struct log *log)
{
    if (!is_name(name))
        return log_fail(log, DESCANT_INVALID, "--hosts: '%s' is no name of a host", name);
    for (int k = 0; k < l->n_hosts; k++)
        if (strcmp(l->hosts[k].name, name) == 0)
            return log_fail(log, DESCANT_INVALID,
                            "--hosts: %s is named twice; -n sets the number of ranks "
                            "on each host",
                            name);
    if ((l->n_hosts + 1) * l->each > HOSTS_RANKS)
        return log_fail(log, DESCANT_INVALID, "--hosts: a run has at most %d ranks",
                        HOSTS_RANKS);
    struct host *host = &l->hosts[l->n_hosts++];
    strcpy(host->name, name);
    host->here = is_loopback(name) || strcmp(name, here) == 0;
    return DESCANT_OK;
}

static descant_status take_hosts(struct layout *l, const char *list, const char *here,
                                 const struct log *log)
{
    char name[HOST_NAME];
    descant_status status = DESCANT_OK;

    for (int64_t k = 0; status == DESCANT_OK; k++) {
        enum hostlist what = hostlist_host(list, k, name, sizeof name);
        if (what == HOSTLIST_END)
            break;
        status = what == HOSTLIST_BAD
                     ? log_fail(log, DESCANT_INVALID,
                                "--hosts %s: give names with commas between them, as "
                                "a,b or node[01-16]",
                                list)
                     : take_host(l, name, here, log);
    }
    if (status == DESCANT_OK && l->n_hosts == 0)
        status = log_fail(log, DESCANT_INVALID, "--hosts names no host");
    return status;
}

/* With such a name other hosts would look for rank 0 on themselves. */
static descant_status check_first(const struct layout *l, const char *here,
                                  const struct log *log)
{
    for (int k = 0; k < l->n_hosts; k++)
        if (l->n_hosts > 1 && is_loopback(l->hosts[k].name))
            return log_fail(log, DESCANT_INVALID,
                            "--hosts: other hosts cannot reach this host as %s; give a "
                            "name that they know, perhaps %s",
                            l->hosts[k].name, here);
    return DESCANT_OK;
}

/* Writes the address at which all ranks meet, and settles whether it is to name a
 * secret. */
static void write_address(struct layout *l, const struct hosts_options *o,
                          uint64_t chance)
{
    bool together = l->n_hosts == 1, over_tcp = !together || o->port;
    const char *at = strrchr(l->hosts[0].name, '@');
    const char *name = at ? at + 1 : l->hosts[0].name;
    bool v6 = strchr(name, ':') != NULL;

    name = together ? "127.0.0.1" : name;       /* it is where rank 0 is, too */
    v6 &= !together;
    l->secret = over_tcp && !together && !o->insecure;
    if (!over_tcp)
        snprintf(l->address, sizeof l->address, "shm:run-%s", l->id);
    else
        snprintf(l->address, sizeof l->address, "tcp:%s%s%s:%d,ranks=%d%s",
                 v6 ? "[" : "", name, v6 ? "]" : "",
                 o->port ? (int)o->port : PORTS_FROM + (int)(chance % PORTS),
                 l->n > 2 ? l->n : 2, o->insecure && !together ? ",insecure=1" : "");
}

descant_status layout_init(struct layout *l, const struct hosts_options *o,
                           uint64_t chance, const char *here, const struct log *log)
{
    *l = (struct layout){.each = (int)o->each};
    l->hosts = memory_take_array(HOSTS_RANKS, sizeof *l->hosts);
    if (!l->hosts)
        return log_fail(log, DESCANT_MEMORY, "no memory for the names of hosts");
    descant_status status = take_hosts(l, o->hosts ? o->hosts : "localhost", here, log);
    if (status == DESCANT_OK)
        status = check_first(l, here, log);
    if (status == DESCANT_OK && o->secret && (o->insecure || l->n_hosts == 1))
        status = log_fail(log, DESCANT_INVALID, "--secret %s: %s", o->secret,
                          o->insecure ? "--insecure says that there is none"
                                      : "the ranks of one host meet on it, without one");
    if (status != DESCANT_OK) {
        layout_fini(l);
        return status;
    }
    l->n = l->n_hosts * l->each;
    snprintf(l->id, sizeof l->id, "%016" PRIx64, chance);
    write_address(l, o, chance);
    return DESCANT_OK;
}

void layout_fini(struct layout *l)
{
    memory_give(l->hosts);
    l->hosts = NULL;
}
