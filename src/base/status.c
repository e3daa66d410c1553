/* SPDX-License-Identifier: MIT */
/* Failures and the log. The first function that decides that something is an error calls
 * log_fail: the line goes to the caller's callback, and stays with the thread for
 * descant_last_error. Where a program has set no callback, lines from DESCANT_LOG on go
 * to standard error.
 *
 * Callbacks run one at a time, under one lock for the whole process, so that a caller's
 * function need not be reentrant; it must not call functions that log. A line is cut at
 * LOG_LINE. */
#include "base/base.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t callback_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local char last_error[LOG_LINE];

static const char *const texts[] = {
#define X(name, text) [DESCANT_##name] = text,
    DESCANT_STATUS_LIST(X)
#undef X
};

const char *descant_status_text(descant_status status)
{
    size_t i = (size_t)status;
    return i < sizeof texts / sizeof *texts ? texts[i] : "an unknown status";
}

const char *descant_last_error(void)
{
    return last_error;
}

const char *descant_version(void)
{
    return DESCANT_VERSION;
}

static void deliver(const struct log *log, enum descant_level level, const char *text)
{
    char line[LOG_LINE + 32];
    if (!log || !log->fn)
        return;
    if (log->rank >= 0)
        snprintf(line, sizeof line, "rank %d: %s", log->rank, text);
    else
        snprintf(line, sizeof line, "%s", text);
    pthread_mutex_lock(&callback_lock);
    log->fn(log->user, level, line);
    pthread_mutex_unlock(&callback_lock);
}

/* user: the least level that is written. */
static void to_stderr(void *user, enum descant_level level, const char *line)
{
    const enum descant_level *least = user;
    if (level >= *least)
        fprintf(stderr, "descant: %s\n", line);
}

descant_status log_default(struct log *log)
{
    static enum descant_level levels[] = {DESCANT_DEBUG, DESCANT_INFO, DESCANT_WARNING,
                                          DESCANT_ERROR};
    enum { OFF = sizeof levels / sizeof *levels };
    const char *word = getenv("DESCANT_LOG");
    word = word && *word ? word : "info";
    int least = option_choice("debug|info|warning|error|off", word);
    if (least >= 0 && least < OFF) {
        log->fn = to_stderr;
        log->user = &levels[least];
    }
    if (least >= 0)
        return DESCANT_OK;
    const struct log always = {.fn = to_stderr, .user = &levels[OFF - 1], .rank = -1};
    return log_fail(&always, DESCANT_INVALID,
                    "DESCANT_LOG=%s: it is debug, info, warning, error or off", word);
}

static void make_line(char *line, const char *format, va_list args)
{
    char text[LOG_LINE];
    vsnprintf(text, sizeof text, format, args);
    text_line(line, LOG_LINE, text);
}

void log_say(const struct log *log, enum descant_level level, const char *format, ...)
{
    char text[LOG_LINE];
    va_list args;
    if (!log || !log->fn)
        return;
    va_start(args, format);
    make_line(text, format, args);
    va_end(args);
    deliver(log, level, text);
}

descant_status log_fail(const struct log *log, descant_status status, const char *format,
                        ...)
{
    char text[LOG_LINE];    /* an argument may be descant_last_error itself */
    va_list args;
    va_start(args, format);
    make_line(text, format, args);
    va_end(args);
    memcpy(last_error, text, sizeof last_error);
    deliver(log, DESCANT_ERROR, text);
    return status;
}

void log_recall(const char *line)
{
    if (line != last_error)
        snprintf(last_error, sizeof last_error, "%s", line);
}
