/* SPDX-License-Identifier: MIT */
/* The loop of descant run: one thread that sleeps in poll. Each rank is a child, a shell
 * here or ssh, in a session of its own, so that a terminal's Ctrl-C reaches only the run.
 * A pipe to the child carries the script and then names of signals (script.c), two others
 * bring the rank's output. All pipes are closed in other children, for to a host the end
 * of the first pipe is the end of the run: if this process is killed, every host notices.
 *
 * 1. A rank that dies is started again by itself (restarts.c), and the others are not
 *    touched. If its restart is due when no other rank runs any more, and some have ended
 *    with 0, the rank is given up: it would wait for a job that is over.
 * 2. Rank 0, where its host is this one, has this run's standard input, if that is a
 *    pipe, a socket or a file. A process that is started again has none, for what the
 *    first one has read is gone.
 * 3. If a rank refuses the options (restarts.c), the others get SIGTERM, and SIGKILL if
 *    they have not ended END_S later; no rank is started again.
 * 4. The first SIGINT or SIGTERM goes to all ranks, and no rank is started again. Another
 *    signal, a second later at least, kills them, and after 5 s more their shells. */
#include "hosts/hosts.h"
#include "run/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define S UINT64_C(1000000000)

enum { END_S = 5, KILL_S = 5, POLLED = 3, SPARE_FILES = 64 };
enum { ABOVE_ALL = 10 };        /* descriptors that a script names are below it */
enum { TURN_MOST = 64 << 10 };  /* bytes of a stream in a turn: what a pipe holds */

enum rank_state { RANK_RUNS, RANK_WAITS, RANK_OVER };

/* A rank's standard output, or its standard error. */
struct rank_stream {
    int fd;                     /* -1: closed */
    struct output_lines lines;
};

struct rank {
    int number;
    const struct host *host;
    enum rank_state state;
    pid_t pid;
    int in;                     /* to it; -1 */
    char *script;               /* the rest to write: [at, n); NULL: nothing */
    size_t at, n;
    int signal;                 /* to be written behind the script; 0 */
    struct rank_stream streams[2];
    struct restarts restarts;
    uint64_t started_ns, again_ns;
    int status;                 /* of its last end */
    bool again;                 /* it was started before */
    bool done;                  /* OVER: it has ended with 0 */
};

/* One run of the command on all hosts. */
struct hosts_run {
    const struct hosts_options *options;
    struct layout layout;
    struct rank *ranks;         /* (layout.n) */
    struct pollfd *polled;      /* (POLLED * layout.n + 1): signals; then each rank's
                                   input, output and errors */
    char secret[SECRET_LINE + 1], folder[PATH_MAX];
    char *ssh[HOSTS_WORDS + 3], *ssh_words;
    struct signals signals;
    struct rlimit files;        /* as it was */
    bool input;                 /* rule 2, and rank 0 has not been started yet */
    bool refused;               /* rule 3 */
    uint64_t hurry_ns;          /* SIGKILL to ranks then; 0 */
    uint64_t kill_ns;           /* the shells then; 0 */
    int ends;                   /* the signal that ends it; 0 */
    int status;                 /* of the first rank given up */
    const struct log *log;
    FILE *err;
};

/* --- starting --- */

/* Rule 2. */
static bool has_input(const struct hosts_run *r, const struct rank *rank)
{
    return r->input && rank->number == 0;
}

/* In the child: becomes a shell, or ssh, with the pipes as its streams; exec closes all
 * others. Without a terminal ssh cannot ask for a password, and is not to do so by
 * SSH_ASKPASS. */
static void become(struct hosts_run *r, struct rank *rank, const int in[2],
                   const int out[2][2])
{
    static char sh[] = "sh", c[] = "-c";
    char line[SCRIPT_READER + 32];
    sigset_t none;

    setsid();
    for (int s = 1; s < NSIG; s++)
        signal(s, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setrlimit(RLIMIT_NOFILE, &r->files);
    int input =
        has_input(r, rank) ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, ABOVE_ALL) : -1;
    dup2(in[0], STDIN_FILENO);
    dup2(out[0][1], STDOUT_FILENO);
    dup2(out[1][1], STDERR_FILENO);
    if (input >= 0)
        dup2(input, SCRIPT_INPUT);
    if (rank->host->here) {
        snprintf(line, sizeof line, "%s", script_reader);
        execvp(sh, (char *[]){sh, c, line, NULL});
    } else {
        int n = 0;
        char name[HOST_NAME];
        snprintf(line, sizeof line, "exec sh -c '%s'", script_reader);
        strcpy(name, rank->host->name);
        while (r->ssh[n])
            n++;
        r->ssh[n++] = name;
        r->ssh[n++] = line;
        r->ssh[n] = NULL;
        setenv("SSH_ASKPASS_REQUIRE", "never", 1);
        execvp(r->ssh[0], r->ssh);
    }
    fprintf(stderr, "descant run: %s cannot be started: %s\n",
            rank->host->here ? sh : r->ssh[0], strerror(errno));
    fflush(stderr);
    _exit(127);
}

static void close_pipe(int ends[2])
{
    for (int k = 0; k < 2; k++)
        if (ends[k] >= 0)
            close(ends[k]);
}

static void close_input(struct rank *rank)
{
    if (rank->in >= 0)
        close(rank->in);
    rank->in = -1;
    free(rank->script);
    rank->script = NULL;
}

/* The child has the other end of each pipe. */
static bool fork_rank(struct hosts_run *r, struct rank *rank)
{
    int in[2] = {-1, -1}, out[2][2] = {{-1, -1}, {-1, -1}};
    pid_t pid = -1;

    if (pipe2(in, O_CLOEXEC) == 0 && pipe2(out[0], O_CLOEXEC) == 0 &&
        pipe2(out[1], O_CLOEXEC) == 0)
        pid = fork();
    if (pid == 0)
        become(r, rank, in, out);
    if (pid < 0) {
        int error = errno;
        close_pipe(in);
        close_pipe(out[0]);
        close_pipe(out[1]);
        errno = error;
        return false;
    }
    rank->pid = pid;
    rank->in = in[1];
    close(in[0]);
    fcntl(rank->in, F_SETFL, O_NONBLOCK);
    for (int k = 0; k < 2; k++) {
        close(out[k][1]);
        rank->streams[k].fd = out[k][0];
        fcntl(rank->streams[k].fd, F_SETFL, O_NONBLOCK);
    }
    return true;
}

/* Its writer is to find the pipe closed as soon as rank 0 has closed it. */
static void let_input_go(struct hosts_run *r)
{
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (nothing >= 0) {
        dup2(nothing, STDIN_FILENO);
        close(nothing);
    }
    r->input = false;
}

/* Starts the rank with a script of its own, which write_input hands over as the pipe has
 * room. False, after logging why: no process was started. */
static bool start(struct hosts_run *r, struct rank *rank)
{
    const struct script script = {
        .layout = &r->layout, .options = r->options, .folder = r->folder,
        .secret = r->layout.secret ? r->secret : NULL, .rank = rank->number,
        .again = rank->again, .input = has_input(r, rank),
    };

    rank->script = script_text(&script, &rank->n);
    rank->at = 0;
    rank->signal = 0;
    if (!rank->script || !fork_rank(r, rank)) {
        log_fail(r->log, DESCANT_SYSTEM, "rank %d cannot be started: %s", rank->number,
                 strerror(errno));
        close_input(rank);
        return false;
    }
    if (has_input(r, rank))
        let_input_go(r);
    rank->state = RANK_RUNS;
    rank->started_ns = clock_now_ns();
    rank->again = true;
    return true;
}

/* --- ending --- */

/* Takes the output that is there now, and does not wait for later output: a rank that
 * writes without a rest holds up neither others nor signals, and a process that has left
 * the rank not its end. */
static void read_stream(struct rank_stream *stream)
{
    char bytes[LINE_MOST];
    ssize_t n = 1;

    for (size_t got = 0; stream->fd >= 0 && n && got < TURN_MOST;) {
        n = read(stream->fd, bytes, sizeof bytes);
        if (n < 0 && errno != EINTR)
            return;
        if (n > 0)
            output_put(&stream->lines, bytes, (size_t)n);
        got += n > 0 ? (size_t)n : 0;
    }
    if (n == 0)
        close(stream->fd);
    stream->fd = n == 0 ? -1 : stream->fd;
}

static void close_stream(struct rank_stream *stream)
{
    read_stream(stream);
    output_end(&stream->lines);
    if (stream->fd >= 0)
        close(stream->fd);
    stream->fd = -1;
}

static const char *end_text(const struct rank *rank, enum rank_end end, int status,
                            char *text, size_t room)
{
    if (end == RANK_LOST)
        snprintf(text, room, "has lost its connection (ssh ended with status 255)");
    else if (end == RANK_KILLED)
        snprintf(text, room, "was killed by signal %d", status - 128);
    else if (end == RANK_NO_COMMAND && !rank->restarts.ran)
        snprintf(text, room, "could not be started (status %d)", status);
    else
        snprintf(text, room, "has ended with status %d", status);
    return text;
}

static int running(const struct hosts_run *r)
{
    int n = 0;
    for (int k = 0; k < r->layout.n; k++)
        n += r->ranks[k].state == RANK_RUNS;
    return n;
}

/* how, why: parts of the line in the log. The first rank given up decides the run's
 * status. */
static void give_up(struct hosts_run *r, struct rank *rank, const char *how,
                    const char *why)
{
    rank->state = RANK_OVER;
    r->status = r->status ? r->status : rank->status ? rank->status : 1;
    log_say(r->log, DESCANT_WARNING, "rank %d (%s) %s, and is not started again%s%s",
            rank->number, rank->host->name, how, why,
            running(r) ? "; the others go on" : "");
}

static void tell_all(struct hosts_run *r, int signal)
{
    for (int k = 0; k < r->layout.n; k++)
        if (r->ranks[k].state == RANK_RUNS)
            r->ranks[k].signal = signal;
}

/* Rule 3. The rank has said what it refuses. */
static void end_refused(struct hosts_run *r, const struct rank *rank)
{
    r->refused = true;
    r->status = r->status ? r->status : rank->status;
    r->hurry_ns = clock_now_ns() + END_S * S;
    log_say(r->log, DESCANT_ERROR,
            "rank %d (%s) has ended with status 2 at its start, as for wrong options: "
            "the run ends", rank->number, rank->host->name);
    tell_all(r, SIGTERM);
}

static void note_end(struct hosts_run *r, struct rank *rank, int status)
{
    char how[96];
    enum rank_end end = rank_end(status, !rank->host->here);
    uint64_t wait_ns = 0, now = clock_now_ns(), ran_ns = now - rank->started_ns;

    end_text(rank, end, status, how, sizeof how);
    bool never = restarts_never(&rank->restarts, end, ran_ns);
    bool again = restarts_again(&rank->restarts, end, ran_ns, &wait_ns);
    rank->state = RANK_OVER;
    rank->status = status;
    rank->done = end == RANK_DONE;
    if (rank->done || r->ends || r->refused)
        return;
    if (never) {
        end_refused(r, rank);
        return;
    }
    if (!again) {
        give_up(r, rank, how, "");
        return;
    }
    rank->state = RANK_WAITS;
    rank->again_ns = now + wait_ns;
    log_say(r->log, DESCANT_WARNING, "rank %d (%s) %s: it is started again in %d s%s",
            rank->number, rank->host->name, how, (int)(wait_ns / S),
            running(r) ? "; the others go on" : "");
}

static void reap(struct hosts_run *r)
{
    int status;

    for (int k = 0; k < r->layout.n; k++) {
        struct rank *rank = &r->ranks[k];
        if (rank->state != RANK_RUNS || waitpid(rank->pid, &status, WNOHANG) != rank->pid)
            continue;
        rank->pid = 0;
        /* the rank's last output is still in the pipes, and is printed before the line on
         * its end */
        close_input(rank);
        close_stream(&rank->streams[0]);
        close_stream(&rank->streams[1]);
        note_end(r, rank,
                 WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
}

static bool any_done(const struct hosts_run *r)
{
    for (int k = 0; k < r->layout.n; k++)
        if (r->ranks[k].done)
            return true;
    return false;
}

static void start_due(struct hosts_run *r)
{
    for (int k = 0; k < r->layout.n; k++) {
        struct rank *rank = &r->ranks[k];
        if (rank->state != RANK_WAITS)
            continue;
        if (r->ends || r->refused)
            rank->state = RANK_OVER;
        else if (clock_now_ns() < rank->again_ns)
            continue;
        else if (running(r) == 0 && any_done(r))
            give_up(r, rank, "has died", " since the other ranks are done");
        else if (!start(r, rank))
            give_up(r, rank, "has no process", "");
    }
}

/* --- signals --- */

static const char *signal_word(int signal)
{
    return signal == SIGKILL ? "KILL" : signal == SIGINT ? "INT" : "TERM";
}

/* Writes the rest of the script, then the signal. That a shell is gone is known by its
 * end. */
static void write_input(struct rank *rank)
{
    char word[8];

    if (rank->script) {
        ssize_t n = write(rank->in, rank->script + rank->at, rank->n - rank->at);
        rank->at += n > 0 ? (size_t)n : 0;
        if (rank->at < rank->n && (n >= 0 || errno == EAGAIN || errno == EINTR))
            return;
        free(rank->script);
        rank->script = NULL;
    }
    int n = snprintf(word, sizeof word, "%s\n", signal_word(rank->signal));
    if (rank->signal && (write(rank->in, word, (size_t)n) == n || errno != EAGAIN))
        rank->signal = 0;
}

static void hear_signals(struct hosts_run *r, int fd)
{
    struct signalfd_siginfo info;

    while (read(fd, &info, sizeof info) == sizeof info) {
        int signal = (int)info.ssi_signo;
        if (signal != SIGINT && signal != SIGTERM)
            continue;
        switch (first_signal_note(&r->signals.first, signal, clock_now_ns())) {
        case SIGNAL_ENDS:
            r->ends = signal;
            tell_all(r, signal);
            fprintf(r->err,
                    "descant: %s: it goes to all ranks; " SIGNALS_AGAIN "them at once\n",
                    signal_name(signal));
            fflush(r->err);
            break;
        case SIGNAL_HURRIES:
            tell_all(r, SIGKILL);
            r->kill_ns = r->kill_ns ? r->kill_ns : clock_now_ns() + KILL_S * S;
            break;
        default:
            break;
        }
    }
}

static void kill_late(struct hosts_run *r)
{
    if (!r->hurry_ns || clock_now_ns() < r->hurry_ns)
        return;
    r->hurry_ns = 0;
    tell_all(r, SIGKILL);
    r->kill_ns = r->kill_ns ? r->kill_ns : clock_now_ns() + KILL_S * S;
}

static void kill_shells(struct hosts_run *r)
{
    if (!r->kill_ns || clock_now_ns() < r->kill_ns)
        return;
    for (int k = 0; k < r->layout.n; k++)
        if (r->ranks[k].state == RANK_RUNS)
            kill(-r->ranks[k].pid, SIGKILL);
    r->kill_ns = clock_now_ns() + S;
}

/* --- the loop --- */

static bool goes_on(const struct hosts_run *r)
{
    for (int k = 0; k < r->layout.n; k++)
        if (r->ranks[k].state != RANK_OVER)
            return true;
    return false;
}

/* Milliseconds until the next thing is due, rounded up; -1: nothing is. */
static int rest_ms(const struct hosts_run *r)
{
    uint64_t due = r->kill_ns ? r->kill_ns : UINT64_MAX, now = clock_now_ns();

    due = r->hurry_ns && r->hurry_ns < due ? r->hurry_ns : due;
    for (int k = 0; k < r->layout.n; k++)
        if (r->ranks[k].state == RANK_WAITS && r->ranks[k].again_ns < due)
            due = r->ranks[k].again_ns;
    return due == UINT64_MAX ? -1 : due <= now ? 0 : (int)((due - now) / 1000000) + 1;
}

static void look(struct hosts_run *r, int signals)
{
    nfds_t n = 0;

    r->polled[n++] = (struct pollfd){signals, POLLIN, 0};
    for (int k = 0; k < r->layout.n; k++) {
        const struct rank *rank = &r->ranks[k];
        bool writes = rank->script || rank->signal;
        r->polled[n++] = (struct pollfd){writes ? rank->in : -1, POLLOUT, 0};
        for (int i = 0; i < 2; i++)
            r->polled[n++] = (struct pollfd){rank->streams[i].fd, POLLIN, 0};
    }
    if (poll(r->polled, n, rest_ms(r)) <= 0)
        return;
    for (int k = 0; k < r->layout.n; k++) {
        const struct pollfd *at = &r->polled[1 + POLLED * k];
        if (at[0].revents)
            write_input(&r->ranks[k]);
        for (int i = 0; i < 2; i++)
            if (at[1 + i].revents)
                read_stream(&r->ranks[k].streams[i]);
    }
}

static void loop(struct hosts_run *r, int signals)
{
    while (goes_on(r)) {
        look(r, signals);
        hear_signals(r, signals);
        reap(r);
        kill_late(r);
        kill_shells(r);
        start_due(r);
    }
}

/* --- all of it --- */

/* The words of --ssh, which end with NULL; there is room for two more. */
static descant_status split_ssh(struct hosts_run *r)
{
    int n = 0;

    r->ssh_words = strdup(r->options->ssh);
    if (!r->ssh_words)
        return log_fail(r->log, DESCANT_MEMORY, "no memory for --ssh");
    for (char *word = strtok(r->ssh_words, " "); word && n < HOSTS_WORDS;
         word = strtok(NULL, " "))
        r->ssh[n++] = word;
    return n ? DESCANT_OK
             : log_fail(r->log, DESCANT_INVALID,
                        "--ssh '%s': give a command, such as ssh", r->options->ssh);
}

/* Raises the limit of open files to three for each rank. */
static descant_status make_room(struct hosts_run *r)
{
    rlim_t needed = POLLED * (rlim_t)r->layout.n + SPARE_FILES;

    if (getrlimit(RLIMIT_NOFILE, &r->files) != 0 || r->files.rlim_cur >= needed)
        return DESCANT_OK;
    struct rlimit more = r->files;
    more.rlim_cur = needed < more.rlim_max ? needed : more.rlim_max;
    if (more.rlim_cur == needed && setrlimit(RLIMIT_NOFILE, &more) == 0)
        return DESCANT_OK;
    return log_fail(r->log, DESCANT_SYSTEM,
                    "%d ranks need %llu descriptors, and this process may have %llu: "
                    "raise the limit with ulimit -n %llu",
                    r->layout.n, (unsigned long long)needed,
                    (unsigned long long)r->files.rlim_max, (unsigned long long)needed);
}

static descant_status prepare(struct hosts_run *r, FILE *out)
{
    char here[HOST_NAME] = "";
    struct stat of;
    uint64_t chance;

    gethostname(here, sizeof here - 1);
    bool given = fstat(STDIN_FILENO, &of) == 0 && !S_ISCHR(of.st_mode);
    if (getrandom(&chance, sizeof chance, 0) != sizeof chance)
        chance = clock_now_ns();
    descant_status status = layout_init(&r->layout, r->options, chance, here, r->log);
    r->input = status == DESCANT_OK && given && r->layout.hosts[0].here;
    if (status == DESCANT_OK)
        status = split_ssh(r);
    if (status == DESCANT_OK && r->layout.secret)
        status = secret_line(r->secret, r->options->secret, r->log);
    if (status == DESCANT_OK && !getcwd(r->folder, sizeof r->folder))
        status = log_fail(r->log, DESCANT_SYSTEM,
                          "the path of the current folder cannot be had: %s",
                          strerror(errno));
    if (status == DESCANT_OK)
        status = make_room(r);
    if (status != DESCANT_OK)
        return status;
    r->ranks = memory_take_array((size_t)r->layout.n, sizeof *r->ranks);
    r->polled =
        memory_take_array(POLLED * (size_t)r->layout.n + 1, sizeof *r->polled);
    if (!r->ranks || !r->polled)
        return log_fail(r->log, DESCANT_MEMORY, "no memory for %d ranks", r->layout.n);
    for (int k = 0; k < r->layout.n; k++) {
        struct rank *rank = &r->ranks[k];
        *rank = (struct rank){.number = k, .in = -1, .state = RANK_WAITS};
        rank->host = &r->layout.hosts[k / r->layout.each];
        rank->restarts.most = (int)r->options->restarts;
        for (int i = 0; i < 2; i++) {
            rank->streams[i].fd = -1;
            output_init(&rank->streams[i].lines, i ? r->err : out,
                        r->options->plain ? -1 : k);
        }
    }
    return DESCANT_OK;
}

static void fini(struct hosts_run *r)
{
    free(r->ssh_words);
    explicit_bzero(r->secret, sizeof r->secret);
    memory_give(r->polled);
    memory_give(r->ranks);
    layout_fini(&r->layout);
}

static void warn(void *err, enum descant_level level, const char *line)
{
    if (level < DESCANT_WARNING)
        return;
    fprintf(err, "descant: %s\n", line);
    fflush(err);
}

int hosts_run(const struct hosts_options *options, FILE *out, FILE *err)
{
    const struct log log = {.fn = warn, .user = err, .rank = -1};
    struct hosts_run r = {.options = options, .log = &log, .err = err};
    descant_status status = prepare(&r, out);

    if (status != DESCANT_OK) {
        fini(&r);
        return status == DESCANT_INVALID ? 2 : 1;
    }
    fflush(out);
    fflush(err);
    signals_block(&r.signals);
    int signals = signalfd(-1, &r.signals.held, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals >= 0) {
        start_due(&r);
        loop(&r, signals);
        close(signals);
    } else {
        r.status = 1;
        log_fail(&log, DESCANT_SYSTEM, "no signalfd: %s", strerror(errno));
    }
    signals_give_back(&r.signals);
    setrlimit(RLIMIT_NOFILE, &r.files);
    fini(&r);
    return r.ends ? 128 + r.ends : r.status;
}
