/* SPDX-License-Identifier: MIT */
/* The link over TCP: its address, HOST:PORT and what follows. */
#include "base/base.h"
#include "link/tcp.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64, DEAD_S = 10 };        /* where the address does not say */

static const struct option options[] = {
    {"ranks", OPTION_INT, offsetof(struct tcp_options, most), 2, 4096, NULL,
     "room for so many ranks in all, as rank 0 says"},
    {"dead", OPTION_SECONDS, offsetof(struct tcp_options, dead_s), 0.1, 3600, NULL,
     "a rank that is not heard for so long is left out"},
    {"insecure", OPTION_BOOL, offsetof(struct tcp_options, insecure), 0, 0, NULL,
     "nothing is encrypted, and whoever reaches the port may come"},
};

static const struct option_table table = {options, sizeof options / sizeof *options};

static bool read_keys(struct tcp_options *into, const char *at, const char *whole,
                      char *message, size_t room)
{
    while (*at == ',') {
        struct option_text text = {.whole = whole, .key = ++at};
        size_t length = strcspn(at, ",");
        const char *equals = memchr(at, '=', length);
        text.key_length = equals ? (size_t)(equals - at) : length;
        text.value = equals ? equals + 1 : at + length;
        text.value_length = length - (size_t)(text.value - at);
        if (!option_set(table, &text, into, message, room))
            return false;
        at += length;
    }
    return true;
}

descant_status tcp_options_read(struct tcp_options *into, const char *address,
                                const struct log *log)
{
    char message[LOG_LINE];
    const char *end = address + strcspn(address, ",");
    const char *open = *address == '[' ? address + 1 : address;
    const char *colon = NULL;

    for (const char *p = address; p < end; p++)
        colon = *p == ':' ? p : colon;
    const char *close = colon && open != address ? colon - 1 : colon;
    size_t host = close && close > open ? (size_t)(close - open) : 0;
    size_t port = colon ? (size_t)(end - colon - 1) : 0;
    if (!host || !port || host >= sizeof into->host || port > 5 ||
        (open != address && *close != ']') ||
        strspn(colon + 1, "0123456789") != port || atoi(colon + 1) < 1 ||
        atoi(colon + 1) > UINT16_MAX)
        return log_fail(log, DESCANT_BAD_ADDRESS,
                        "\"tcp:%s\": the address is tcp:HOST:PORT, where rank 0 listens",
                        address);
    *into = (struct tcp_options){.most = MOST, .dead_s = DEAD_S};
    memcpy(into->host, open, host);
    memcpy(into->port, colon + 1, port);
    if (!read_keys(into, end, address, message, sizeof message))
        return log_fail(log, DESCANT_BAD_ADDRESS, "tcp: %s", message);
    return DESCANT_OK;
}
