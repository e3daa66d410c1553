/* SPDX-License-Identifier: MIT */
/* The part of TLS outside of its module (tls.h): finds and loads the module, reads the
 * secret, and refuses files that other users can read before OpenSSL sees them. */
#include "link/tls.h"
#include "base/base.h"
#include "link/module.h"
#include "link/secret.h"

#include <string.h>
#include <unistd.h>

static const struct link_module module = {
    .file = "descant-tls.so", .library = "OpenSSL 3", .package = "libssl-dev",
    .wanted_by = "a job with a secret or certificates", .variable = "DESCANT_TLS_MODULE",
    .symbol = TLS_SYMBOL, .version = TLS_VERSION,
    .advice = "; it needs OpenSSL 3: install the package libssl3, or openssl-libs",
};

bool tls_module_find(char *path, size_t room)
{
    return module_find(&module, path, room);
}

/* Whether there are either the three files of certificates or a secret. */
static descant_status check(const struct tls_files *files, const struct log *log)
{
    bool any = files->cert || files->key || files->ca;

    if (files->secret && any)
        return log_fail(log, DESCANT_INVALID,
                        "secret= and certificates exclude each other: give secret=, or "
                        "cert=, key= and ca=");
    if (!files->secret && (!files->cert || !files->key || !files->ca))
        return log_fail(log, DESCANT_INVALID,
                        any ? "certificates need all of cert=, key= and ca="
                            : "neither secret= nor cert=, key= and ca= are given");
    return DESCANT_OK;
}

descant_status tls_open(struct tls **tls, const struct tls_files *files,
                        const struct log *log)
{
    unsigned char secret[SECRET_BYTES];
    struct tls_keys keys = {.cert = files->cert, .key = files->key, .ca = files->ca};
    char why[TLS_WHY];
    descant_status status = check(files, log);

    if (status == DESCANT_OK && files->secret) {
        keys.secret = secret;
        status = secret_read(secret, files->secret, log);
    } else if (status == DESCANT_OK) {
        int fd = secret_open("key", files->key, log);
        status = fd < 0 ? DESCANT_INVALID : DESCANT_OK;
        if (fd >= 0)
            close(fd);
    }
    if (status != DESCANT_OK)
        return status;
    const struct tls_type *type = module_load(&module, log);
    struct tls *made = type ? type->open(&keys, why) : NULL;
    explicit_bzero(secret, sizeof secret);
    if (!type)
        return DESCANT_UNSUPPORTED;
    if (!made)
        return log_fail(log, DESCANT_INVALID, "TLS cannot begin: %s", why);
    *tls = made;
    return DESCANT_OK;
}
