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
};

/* Names of files. */
static const struct {
    const char *name;
    size_t offset;
} files[] = {
    {"secret", offsetof(struct tcp_options, secret)},
    {"cert", offsetof(struct tcp_options, cert)},
    {"key", offsetof(struct tcp_options, key)},
    {"ca", offsetof(struct tcp_options, ca)},
};

static const struct option_table table = {options, sizeof options / sizeof *options};

/* The room for the name of a file; NULL: the key is none of a file. */
static char *file_of(struct tcp_options *into, const struct option_text *text)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (strlen(files[i].name) == text->key_length &&
            memcmp(files[i].name, text->key, text->key_length) == 0)
            return (char *)into + files[i].offset;
    return NULL;
}

static bool read_file_name(char *into, const struct option_text *text, char *message,
                           size_t room)
{
    if (text->value_length > 0 && text->value_length < TCP_TEXT) {
        memcpy(into, text->value, text->value_length);
        into[text->value_length] = 0;
        return true;
    }
    snprintf(message, room, "%.*s needs the name of a file, with at most %d characters",
             (int)text->key_length, text->key, TCP_TEXT - 1);
    return false;
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
        char *file = file_of(into, &text);
        if (file ? !read_file_name(file, &text, message, room)
                 : !option_set(table, &text, into, message, room))
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
    int certificates = (*into->cert != 0) + (*into->key != 0) + (*into->ca != 0);
    if ((certificates && certificates < 3) || (certificates && *into->secret) ||
        (into->insecure && (certificates || *into->secret)))
        return log_fail(log, DESCANT_BAD_ADDRESS,
                        "\"tcp:%s\": give one of secret=FILE, cert=FILE,key=FILE,ca=FILE "
                        "together, and insecure=1",
                        address);
    return DESCANT_OK;
}
