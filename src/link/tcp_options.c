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
     "the most ranks that the job can have; rank 0's value counts"},
    {"dead", OPTION_SECONDS, offsetof(struct tcp_options, dead_s), 0.1, 3600, NULL,
     "a rank that is silent for this time is left out"},
    {"insecure", OPTION_BOOL, offsetof(struct tcp_options, insecure), 0, 0, NULL,
     "nothing is encrypted, and any process that reaches the port may join"},
    {"star", OPTION_BOOL, offsetof(struct tcp_options, star), 0, 0, NULL,
     "rank 0 is a hub, the only one that others connect to, and passes on what they say"},
    {"rows", OPTION_INT, offsetof(struct tcp_options, rows_port), 0, UINT16_MAX, NULL,
     "the port of rank 0 for rows of tables with owners; 0: the one after PORT"},
};

static const struct name {
    const char *key;
    size_t offset;
    const char *what;
} names[] = {
    {"secret", offsetof(struct tcp_options, secret), "the name of a file"},
    {"cert", offsetof(struct tcp_options, cert), "the name of a file"},
    {"key", offsetof(struct tcp_options, key), "the name of a file"},
    {"ca", offsetof(struct tcp_options, ca), "the name of a file"},
    {"interface", offsetof(struct tcp_options, interface), "the name of an interface"},
    {"ports", offsetof(struct tcp_options, ports), "a port or a range, as 7001-7064"},
};

static const struct option_table table = {options, sizeof options / sizeof *options};

static const struct name *name_of(const struct option_text *text)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i].key) == text->key_length &&
            memcmp(names[i].key, text->key, text->key_length) == 0)
            return &names[i];
    return NULL;
}

static bool read_name(struct tcp_options *into, const struct name *name,
                      const struct option_text *text, char *message, size_t room)
{
    char *field = (char *)into + name->offset;

    if (text->value_length > 0 && text->value_length < TCP_TEXT) {
        memcpy(field, text->value, text->value_length);
        field[text->value_length] = 0;
        return true;
    }
    snprintf(message, room, "%s needs %s, with at most %d characters", name->key,
             name->what, TCP_TEXT - 1);
    return false;
}

/* The port that the text begins with, and its end; 0: none. */
static int read_port(const char *text, const char **end)
{
    size_t digits = strspn(text, "0123456789");
    int port = digits && digits <= 5 ? atoi(text) : 0;

    *end = text + digits;
    return port <= UINT16_MAX ? port : 0;
}

static bool read_ports(struct tcp_options *into, char *message, size_t room)
{
    const char *end = into->ports;

    if (!*end)
        return true;
    into->first_port = into->last_port = read_port(end, &end);
    if (*end == '-')
        into->last_port = read_port(end + 1, &end);
    if (!*end && into->first_port && into->first_port <= into->last_port)
        return true;
    snprintf(message, room, "ports=%s: name a port or a range, as 7001-7064",
             into->ports);
    return false;
}

/* A key that may stand alone, for yes. */
static bool is_switch(const struct option_text *text)
{
    const struct option *o = option_find(table.options, table.n, text->key,
                                         text->key_length);
    return o && o->type == OPTION_BOOL;
}

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
        if (!equals && is_switch(&text)) {
            text.value = "1";
            text.value_length = 1;
        }
        const struct name *name = name_of(&text);
        if (name ? !read_name(into, name, &text, message, room)
                 : !option_set(table, &text, into, message, room))
            return false;
        at += length;
    }
    return read_ports(into, message, room);
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
    const char *rest = NULL;
    int port = colon ? read_port(colon + 1, &rest) : 0;
    if (!host || !port || rest != end || host >= sizeof into->host ||
        (open != address && *close != ']'))
        return log_fail(log, DESCANT_BAD_ADDRESS,
                        "\"tcp:%s\": the address is tcp:HOST:PORT, where rank 0 listens",
                        address);
    *into = (struct tcp_options){.most = MOST, .dead_s = DEAD_S};
    memcpy(into->host, open, host);
    memcpy(into->port, colon + 1, (size_t)(end - colon - 1));
    if (!read_keys(into, end, address, message, sizeof message))
        return log_fail(log, DESCANT_BAD_ADDRESS, "tcp: %s", message);
    int certificates = (*into->cert != 0) + (*into->key != 0) + (*into->ca != 0);
    if ((certificates && certificates < 3) || (certificates && *into->secret) ||
        (into->insecure && (certificates || *into->secret)))
        return log_fail(log, DESCANT_BAD_ADDRESS,
                        "\"tcp:%s\": give one of secret=FILE, cert=FILE,key=FILE,ca=FILE "
                        "together, and insecure=1",
                        address);
    return DESCANT_OK;
}
