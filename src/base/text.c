/* SPDX-License-Identifier: MIT */
/* Text for people. A name or a value may come from elsewhere, and a terminal obeys the
 * bytes that are written to it: an escape sequence in a file's name can rewrite earlier
 * output, or answer in the user's place. So all output is UTF-8 without characters that
 * steer: each other byte is shown by its number, \x1b. Steering are the controls but for
 * the line's end and the tab, those above ASCII (C1), and the marks that turn the
 * direction of writing, behind which a text reads as another one.
 *
 * Two places use this. Each message of the log becomes one line (status.c), also one with
 * line ends in it; and the program's two streams are shown streams, to which all of the
 * program prints.
 *
 * A shown stream is a cookie over another one, unbuffered below, so that flushing it is
 * enough; it keeps the beginning of a character whose rest has not come, and the first
 * error. The program's own control of a terminal, clearing the line of its progress, goes
 * past it. */
#include "base/base.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHARACTER = 4, ESCAPE = 4 };     /* bytes, at most */

int text_character(const char *text, size_t n)
{
    const unsigned char *at = (const unsigned char *)text;
    int length = *at < 0x80 ? 1 : *at < 0xc2 ? 0 : *at < 0xe0 ? 2 : *at < 0xf0 ? 3
                 : *at < 0xf5 ? 4 : 0;

    for (int k = 1; k < length; k++) {
        if ((size_t)k == n)
            return TEXT_CUT;
        if ((at[k] & 0xc0) != 0x80)
            return 0;
        if (k == 1 &&
            ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) ||
             (at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f)))
            return 0;
    }
    return length;
}

unsigned text_steers(const char *text, int length)
{
    const unsigned char *at = (const unsigned char *)text;
    unsigned code = *at;

    if (length == 2)
        code = (at[0] & 0x1fu) << 6 | (at[1] & 0x3fu);
    else if (length == 3)
        code = (at[0] & 0x0fu) << 12 | (at[1] & 0x3fu) << 6 | (at[2] & 0x3fu);
    else if (length == 4)
        return 0;
    bool steers = (code < ' ' && code != '\n' && code != '\t') ||
                  (code >= 0x7f && code < 0xa0) || code == 0x61c || code == 0x200e ||
                  code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
                  (code >= 0x2066 && code <= 0x2069);
    return steers ? code : 0;
}

static size_t escape(char *to, const char *bytes, int n)
{
    static const char digits[] = "0123456789abcdef";
    for (int k = 0; k < n; k++) {
        unsigned char c = (unsigned char)bytes[k];
        *to++ = '\\';
        *to++ = 'x';
        *to++ = digits[c >> 4];
        *to++ = digits[c & 15];
    }
    return (size_t)n * ESCAPE;
}

/* Writes one character, or the escape of a byte that is none; room for CHARACTER *
 * ESCAPE. */
static size_t put(char *to, const char *from, int length)
{
    /* NUL steers, too, though its code is 0 */
    if (length <= 0 || text_steers(from, length) || !*from)
        return escape(to, from, length > 0 ? length : 1);
    memcpy(to, from, (size_t)length);
    return (size_t)length;
}

void text_line(char *to, size_t room, const char *from)
{
    char one[CHARACTER * ESCAPE];
    size_t at = 0, n;

    for (size_t left = strlen(from); left > 0; at += n) {
        int length = text_character(from, left);
        n = *from == '\n' ? escape(one, from, 1) : put(one, from, length);
        if (at + n >= room)
            break;
        memcpy(to + at, one, n);
        from += length > 0 ? length : 1;
        left -= (size_t)(length > 0 ? length : 1);
    }
    to[at] = 0;
}

/* --- shown streams --- */

struct shown {
    struct shown *next;
    FILE *stream, *to;
    char held[CHARACTER];
    size_t n_held;
    _Atomic int error;          /* the first errno; 0: all is written. Other threads may
                                   read it */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    /* of list */
static struct shown *list;

/* The facts about a stream that other threads may ask for; for a stream that is not
 * shown, only the stream. */
static struct known {
    FILE *to;
    int error;
} look_up(FILE *stream)
{
    struct known found = {.to = stream};
    pthread_mutex_lock(&lock);
    for (const struct shown *s = list; s; s = s->next)
        if (s->stream == stream)
            found = (struct known){s->to, s->error};
    pthread_mutex_unlock(&lock);
    return found;
}

static size_t plain_run(const char *bytes, size_t n)
{
    size_t k = 0;
    while (k < n &&
           ((bytes[k] >= ' ' && bytes[k] <= '~') || bytes[k] == '\n' || bytes[k] == '\t'))
        k++;
    return k;
}

/* Whole characters of bytes; *at of n are done. The room is a character's more than it is
 * asked. */
static size_t put_some(char *to, size_t room, const char *bytes, size_t n, size_t *at)
{
    size_t made = 0;

    while (*at < n && made < room) {
        size_t plain =
            plain_run(bytes + *at, n - *at < room - made ? n - *at : room - made);
        memcpy(to + made, bytes + *at, plain);
        made += plain;
        *at += plain;
        if (plain)
            continue;
        int length = text_character(bytes + *at, n - *at);
        if (length == TEXT_CUT)
            break;
        made += put(to + made, bytes + *at, length);
        *at += length > 0 ? (size_t)length : 1;
    }
    return made;
}

static bool pass_on(struct shown *s, const char *bytes, size_t n)
{
    if (fwrite(bytes, 1, n, s->to) == n)
        return true;
    s->error = s->error ? s->error : errno ? errno : EIO;
    return false;
}

static ssize_t write_shown(void *cookie, const char *bytes, size_t n)
{
    enum { ROOM = 4096 };
    struct shown *s = cookie;
    char made[ROOM + CHARACTER * ESCAPE];
    size_t at = 0;
    int before = errno;

    errno = 0;
    while (s->n_held && at < n) {       /* goes on with the character that was begun */
        size_t done = 0;
        s->held[s->n_held++] = bytes[at++];
        if (!pass_on(s, made, put_some(made, ROOM, s->held, s->n_held, &done)))
            return 0;
        s->n_held -= done;
        memmove(s->held, s->held + done, s->n_held);
    }
    while (at < n) {
        size_t from = at;
        if (!pass_on(s, made, put_some(made, ROOM, bytes, n, &at)))
            return 0;
        if (at == from) {               /* the rest is the beginning of a character */
            s->n_held = n - at;
            memcpy(s->held, bytes + at, s->n_held);
            break;
        }
    }
    if (fflush(s->to) != 0) {
        s->error = s->error ? s->error : errno ? errno : EIO;
        return 0;
    }
    errno = before;
    return (ssize_t)n;
}

FILE *shown_open(FILE *to, bool buffered)
{
    static const cookie_io_functions_t how = {.write = write_shown};
    struct shown *s = memory_take(sizeof *s);

    if (!s)
        return NULL;
    s->to = to;
    s->stream = fopencookie(s, "w", how);
    if (!s->stream) {
        memory_give(s);
        return NULL;
    }
    setvbuf(s->stream, NULL,
            !buffered           ? _IONBF
            : shown_columns(to) ? _IOLBF
                                : _IOFBF,
            BUFSIZ);
    pthread_mutex_lock(&lock);
    s->next = list;
    list = s;
    pthread_mutex_unlock(&lock);
    return s->stream;
}

int shown_close(FILE *stream)
{
    pthread_mutex_lock(&lock);
    struct shown **at = &list;
    while ((*at)->stream != stream)
        at = &(*at)->next;
    struct shown *s = *at;
    *at = s->next;
    pthread_mutex_unlock(&lock);
    fclose(stream);
    char made[CHARACTER * ESCAPE];
    if (s->n_held)
        pass_on(s, made, escape(made, s->held, (int)s->n_held));
    int error = s->error;
    memory_give(s);
    return error;
}

int shown_columns(FILE *stream)
{
    struct winsize size;
    int fd = fileno(look_up(stream).to);

    if (fd < 0 || !isatty(fd))
        return 0;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}

void shown_clear_line(FILE *stream)
{
    fflush(stream);
    FILE *to = look_up(stream).to;
    fputs("\r\033[K", to);
    fflush(to);
}

bool shown_for_owner(FILE *stream)
{
    struct stat about;
    int fd = fileno(look_up(stream).to);

    return fd < 0 || fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) ||
           fchmod(fd, 0600) == 0;
}

int stream_error(FILE *stream)
{
    int error = 0, before = errno;
    errno = 0;                  /* ferror leaves it as it was */
    if (fflush(stream) != 0 || ferror(stream)) {
        int now = errno;
        error = look_up(stream).error;
        error = error ? error : now ? now : before ? before : EIO;
    }
    return error;
}
