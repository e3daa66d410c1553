/* SPDX-License-Identifier: MIT */
/* A job's secret: 32 bytes of the kernel's chance, as
 *
 *     descant-secret-1:HEX
 *
 * on one line. The word before the colon keeps a file of another kind, and a secret of
 * another form, from being taken for a secret. All 64 digits must be there: the secret is
 * the key of a handshake that strangers can record and then guess at for as long as they
 * like, so nothing that a person has thought of will do.
 *
 * A file that others can read is refused, as ssh refuses such a key: a secret that
 * was readable may have been copied. */
#include "link/secret.h"
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static const char head[] = "descant-secret-1:";
enum { HEAD = sizeof head - 1 };
_Static_assert(SECRET_LINE == HEAD + 2 * SECRET_BYTES + 1, "a line has its end");

bool secret_make(char line[SECRET_LINE + 1])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char bytes[SECRET_BYTES];

    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return false;
    memcpy(line, head, HEAD);
    for (int i = 0; i < SECRET_BYTES; i++) {
        line[HEAD + 2 * i] = digits[bytes[i] >> 4];
        line[HEAD + 2 * i + 1] = digits[bytes[i] & 15];
    }
    memcpy(line + SECRET_LINE - 1, "\n", 2);
    explicit_bzero(bytes, sizeof bytes);
    return true;
}

int secret_open(const char *option, const char *path, const struct log *log)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

    if (fd < 0 || fstat(fd, &about) != 0) {
        log_fail(log, DESCANT_INVALID, "%s=%s cannot be read: %s", option, path,
                 strerror(errno));
    } else if (!S_ISREG(about.st_mode)) {
        log_fail(log, DESCANT_INVALID, "%s=%s is no regular file", option, path);
    } else if (about.st_mode & 077) {
        log_fail(log, DESCANT_INVALID,
                 "%s=%s can be read or written by others than its owner (its mode is "
                 "%03o): chmod 600 %s, and make a new one if others may have read it",
                 option, path, (unsigned)about.st_mode & 0777, path);
    } else {
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The fault of a line of so many bytes; NULL: none, and the bytes are in secret. */
static const char *parse(unsigned char secret[SECRET_BYTES], const char *line, size_t n)
{
    n -= n > 0 && line[n - 1] == '\n';
    if (n < HEAD || memcmp(line, head, HEAD) != 0)
        return "does not begin with descant-secret-1:";
    if (n != SECRET_LINE - 1)
        return n < SECRET_LINE - 1 ? "is too short" : "is too long";
    for (int i = 0; i < SECRET_BYTES; i++) {
        int high = digit(line[HEAD + 2 * i]), low = digit(line[HEAD + 2 * i + 1]);
        if (high < 0 || low < 0)
            return "has characters that are no digits from 0 to f";
        secret[i] = (unsigned char)(high << 4 | low);
    }
    return NULL;
}

descant_status secret_read(unsigned char secret[SECRET_BYTES], const char *path,
                           const struct log *log)
{
    char line[SECRET_LINE + 1];         /* one more shows that it is too long */
    size_t n = 0;
    ssize_t got = 0;
    int fd = secret_open("secret", path, log);

    if (fd < 0)
        return DESCANT_INVALID;
    while (n < sizeof line && (got = read(fd, line + n, sizeof line - n)) > 0)
        n += (size_t)got;
    int error = errno;
    close(fd);
    if (got < 0)
        return log_fail(log, DESCANT_INVALID, "secret=%s cannot be read: %s", path,
                        strerror(error));
    const char *wrong = parse(secret, line, n);
    explicit_bzero(line, sizeof line);
    return wrong ? log_fail(log, DESCANT_INVALID,
                            "secret=%s is no secret: it %s; make one with: descant "
                            "secret > %s",
                            path, wrong, path)
                 : DESCANT_OK;
}
