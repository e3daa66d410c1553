/* SPDX-License-Identifier: MIT */
/* descant run without its processes: where ranks are, when one is started again, the
 * script that a rank's shell reads, lines with their ranks before them. */
#include "harness/folder.h"
#include "harness/suite.h"
#include "harness/wait.h"
#include "hosts/hosts.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define S UINT64_C(1000000000)

static const struct log quiet;

/* --- where ranks are --- */

static char secret_file[] = "/nowhere";

static const struct {
    struct hosts_options o;
    const char *address;        /* without the number that is by chance, 7 */
    const char *here;           /* of each host 1 or 0 */
    bool secret;
} layouts[] = {
    {{.each = 1}, "shm:run-0000000000000007", "1", false},
    {{.each = 3}, "shm:run-0000000000000007", "1", false},
    {{.each = 3, .hosts = "localhost"}, "shm:run-0000000000000007", "1", false},
    {{.each = 3, .hosts = "far"}, "shm:run-0000000000000007", "0", false},
    {{.each = 3, .hosts = "far", .insecure = true}, "shm:run-0000000000000007", "0", false},
    {{.each = 3, .port = 7000}, "tcp:127.0.0.1:7000,ranks=3", "1", false},
    {{.each = 1, .port = 7000}, "tcp:127.0.0.1:7000,ranks=2", "1", false},
    {{.each = 2, .port = 7000, .hosts = "far"}, "tcp:127.0.0.1:7000,ranks=2", "0", false},
    {{.each = 2, .hosts = "near,far"}, "tcp:near:20007,ranks=4", "10", true},
    {{.each = 2, .hosts = "far,near"}, "tcp:far:20007,ranks=4", "01", true},
    {{.each = 1, .hosts = "n[08-10],m", .port = 1}, "tcp:n08:1,ranks=4", "0000", true},
    {{.each = 1, .hosts = "me@far,me@near"}, "tcp:far:20007,ranks=2", "00", true},
    {{.each = 1, .hosts = "fe80::1,b"}, "tcp:[fe80::1]:20007,ranks=2", "00", true},
    {{.each = 1, .hosts = "a,b", .insecure = true}, "tcp:a:20007,ranks=2,insecure=1", "00",
     false},
    {{.each = 1, .hosts = "a,b", .secret = secret_file}, "tcp:a:20007,ranks=2", "00", true},
};

START_TEST(a_layout)
{
    struct layout l;
    ck_assert_msg(layout_init(&l, &layouts[_i].o, 7, "near", &quiet) == DESCANT_OK, "%s",
                  descant_last_error());
    ck_assert_str_eq(l.address, layouts[_i].address);
    ck_assert_int_eq(l.n_hosts, (int)strlen(layouts[_i].here));
    ck_assert_int_eq(l.n, l.n_hosts * (int)layouts[_i].o.each);
    for (int k = 0; k < l.n_hosts; k++)
        ck_assert_int_eq(l.hosts[k].here, layouts[_i].here[k] == '1');
    ck_assert_int_eq(l.secret, layouts[_i].secret);
    layout_fini(&l);
}
END_TEST

static const struct {
    struct hosts_options o;
    const char *says;
} bad_layouts[] = {
    {{.each = 1, .hosts = ""}, "--hosts names no host"},
    {{.each = 1, .hosts = "a[1-"}, "give names with commas between them"},
    {{.each = 1, .hosts = "a,,b"}, "give names with commas between them"},
    {{.each = 1, .hosts = "a,b,a"}, "a is named twice"},
    {{.each = 1, .hosts = "-oProxyCommand=x"}, "'-oProxyCommand=x' is no name of a host"},
    {{.each = 1, .hosts = "a$(b)"}, "'a$(b)' is no name of a host"},
    {{.each = 1, .hosts = "localhost,b"}, "cannot reach this host as localhost; give a "
                                          "name that they know, perhaps near"},
    {{.each = 1, .hosts = "b,127.0.0.1"}, "cannot reach this host as 127.0.0.1"},
    {{.each = 2049, .hosts = "a,b"}, "a run has at most 4096 ranks"},
    {{.each = 1, .hosts = "a,b", .secret = secret_file, .insecure = true},
     "--insecure says that there is none"},
    {{.each = 1, .hosts = "a", .secret = secret_file}, "the ranks of one host meet on it"},
};

START_TEST(no_layout)
{
    struct layout l;
    ck_assert_int_eq(layout_init(&l, &bad_layouts[_i].o, 7, "near", &quiet),
                     DESCANT_INVALID);
    ck_assert_msg(strstr(descant_last_error(), bad_layouts[_i].says) != NULL, "%s",
                  descant_last_error());
    ck_assert_ptr_null(l.hosts);
}
END_TEST

/* --- when a rank is started again --- */

START_TEST(kinds_of_ends)
{
    for (int status = 0; status < 256; status++) {
        enum rank_end here = rank_end(status, false), there = rank_end(status, true);
        enum rank_end wanted = status == 0                     ? RANK_DONE
                               : status == 2                   ? RANK_REFUSES
                               : status < 126                  ? RANK_FAILED
                               : status < 128                  ? RANK_NO_COMMAND
                               : status > 128 && status <= 192 ? RANK_KILLED
                                                               : RANK_FAILED;
        ck_assert_int_eq(here, wanted);
        ck_assert_int_eq(there, status == 255 ? RANK_LOST : wanted);
    }
}
END_TEST

/* As the head of restarts.c has it, with nothing but a list of what has happened. */
static bool naive(int most, const enum rank_end *ends, const bool *longs, int n, uint64_t *wait_s,
                  bool *never)
{
    int in_row = 0, failed = 0;
    enum rank_end last = ends[n - 1];
    bool only_no_command = true;
    for (int k = 0; k < n; k++)
        only_no_command &= ends[k] == RANK_NO_COMMAND;
    for (int k = n - 2; k >= 0 && !longs[k + 1]; k--) {
        in_row++;
        failed += ends[k] == RANK_FAILED || ends[k] == RANK_NO_COMMAND || ends[k] == RANK_REFUSES;
    }
    *never = last == RANK_REFUSES && !longs[n - 1];
    for (int k = 0; k < n - 1; k++)
        *never &= ends[k] == RANK_NO_COMMAND;
    if (last == RANK_DONE || only_no_command || *never)
        return false;
    *wait_s = 1;
    for (int k = 0; k < in_row; k++)
        *wait_s = *wait_s * 2 < 30 ? *wait_s * 2 : 30;
    if (most >= 0)
        return in_row < most;
    return last == RANK_KILLED || last == RANK_LOST || failed < 3;
}

/* Every history of up to six ends that are restarted, each of which ran for long or not. */
static void histories(int most, struct restarts before, enum rank_end *ends, bool *longs,
                      int n)
{
    enum { LONGEST = 5 };
    for (int end = RANK_DONE; end <= RANK_NO_COMMAND; end++)
        for (int is_long = 0; is_long < 2; is_long++) {
            struct restarts r = before;
            uint64_t wait_ns = 0, wait_s = 0, ran_ns = is_long ? 60 * S : 60 * S - 1;
            bool never;
            ends[n] = (enum rank_end)end;
            longs[n] = is_long;
            bool ends_run = restarts_never(&r, ends[n], ran_ns);
            bool again = restarts_again(&r, ends[n], ran_ns, &wait_ns);
            ck_assert_int_eq(again, naive(most, ends, longs, n + 1, &wait_s, &never));
            ck_assert_int_eq(ends_run, never);
            ck_assert(!(ends_run && again));
            if (!again)
                continue;
            ck_assert_uint_eq(wait_ns, wait_s * S);
            if (n + 1 < LONGEST)
                histories(most, r, ends, longs, n + 1);
        }
}

START_TEST(every_history)
{
    enum rank_end ends[8];
    bool longs[8];
    histories(_i, (struct restarts){.most = _i}, ends, longs, 0);
}
END_TEST

START_TEST(without_end)
{
    struct restarts r = {.most = RESTARTS_AUTO};
    uint64_t wait_ns = 0;
    for (int k = 0; k < 100000; k++)
        ck_assert(restarts_again(&r, k % 2 ? RANK_KILLED : RANK_LOST, S, &wait_ns));
    ck_assert_uint_eq(wait_ns, 30 * S);
}
END_TEST

/* --- lines --- */

static const struct {
    const char *in, *out;
} lines[] = {
    {"", ""},
    {"a\n", "[3] a\n"},
    {"a\nbc\n\nd", "[3] a\n[3] bc\n[3] \n[3] d\n"},
    {"10 %\r20 %\r\n30 %\r", "[3] 10 %\n[3] 20 %\n[3] 30 %\n"},
    {"\r\n\r\n", "[3] \n[3] \n"},
};

/* Whatever the parts are in which a line comes. */
START_TEST(lines_of_a_rank)
{
    static struct output_lines rank;
    size_t n = strlen(lines[_i].in);
    for (size_t first = 0; first <= n; first++)
        for (size_t second = first; second <= n; second++) {
            char *text = NULL;
            size_t length;
            FILE *out = open_memstream(&text, &length);
            output_init(&rank, out, 3);
            output_put(&rank, lines[_i].in, first);
            output_put(&rank, lines[_i].in + first, second - first);
            output_put(&rank, lines[_i].in + second, n - second);
            output_end(&rank);
            fclose(out);
            ck_assert_str_eq(text, lines[_i].out);
            free(text);
        }
}
END_TEST

START_TEST(a_long_line_comes_in_several)
{
    static struct output_lines rank;
    static char bytes[3 * LINE_MOST];
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    memset(bytes, 'x', sizeof bytes);
    output_init(&rank, out, -1);
    output_put(&rank, bytes, 2 * LINE_MOST + 10);
    output_put(&rank, "\n", 1);
    output_end(&rank);
    fclose(out);
    ck_assert_uint_eq(length, 2 * LINE_MOST + 10 + 3);
    ck_assert_int_eq(text[LINE_MOST], '\n');
    free(text);
}
END_TEST

/* --- the secret --- */

START_TEST(a_new_secret)
{
    char one[SECRET_LINE + 1], other[SECRET_LINE + 1];
    ck_assert_int_eq(secret_line(one, NULL, &quiet), DESCANT_OK);
    ck_assert_int_eq(secret_line(other, NULL, &quiet), DESCANT_OK);
    ck_assert_str_ne(one, other);
}
END_TEST

START_TEST(a_secret_of_a_file)
{
    char line[SECRET_LINE + 1], found[SECRET_LINE + 1];
    ck_assert(secret_make(line));
    const char *path = put_file(in_folder("secret"), line, strlen(line));
    ck_assert_int_eq(chmod(path, 0600), 0);
    ck_assert_int_eq(secret_line(found, path, &quiet), DESCANT_OK);
    ck_assert_str_eq(found, line);
    ck_assert_int_eq(chmod(path, 0640), 0);
    ck_assert_int_eq(secret_line(found, path, &quiet), DESCANT_INVALID);
    ck_assert_int_eq(secret_line(found, "/nowhere/secret", &quiet), DESCANT_INVALID);
    put_file(path, "mine\n", 5);
    ck_assert_int_eq(chmod(path, 0600), 0);
    ck_assert_int_eq(secret_line(found, path, &quiet), DESCANT_INVALID);
}
END_TEST

/* --- the script, as shells understand it --- */

static const char *const shells[] = {"dash", "bash", "busybox"};

struct shell {
    pid_t pid;
    int in, out;
};

/* As descant run starts one; false: this machine has no such shell. */
static int shell_input = -1;            /* of the next shell */

static bool start_shell(struct shell *shell, const char *name, const struct script *script)
{
    int in[2], out[2];
    size_t n;
    char *text = script_text(script, &n), line[64];
    snprintf(line, sizeof line, "command -v %s >/dev/null", name);
    ck_assert_ptr_nonnull(text);
    if (system(line) != 0) {
        free(text);
        return false;
    }
    ck_assert(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    shell->pid = fork();
    if (shell->pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        dup2(out[1], 2);
        if (shell_input >= 0)
            dup2(shell_input, SCRIPT_INPUT);
        if (strcmp(name, "busybox") == 0)
            execlp(name, name, "sh", "-c", script_reader, NULL);
        execlp(name, name, "-c", script_reader, NULL);
        _exit(99);
    }
    close(in[0]);
    close(out[1]);
    shell->in = in[1];
    shell->out = out[0];
    ck_assert_int_eq(write(shell->in, text, n), (ssize_t)n);
    free(text);
    return true;
}

static void tell(const struct shell *shell, const char *text)
{
    ck_assert_int_eq(write(shell->in, text, strlen(text)), (ssize_t)strlen(text));
}

/* Reads what it prints until its end, and returns its status. */
static int end_shell(struct shell *shell, char *said, size_t room)
{
    size_t n = 0;
    ssize_t got;
    int status;
    while ((got = read(shell->out, said + n, room - n - 1)) > 0)
        n += (size_t)got;
    said[n] = 0;
    close(shell->out);
    if (shell->in >= 0)
        close(shell->in);
    ck_assert_int_eq(waitpid(shell->pid, &status, 0), shell->pid);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* A run of two hosts with two ranks each, and this process's number, which no other one
 * has. */
static void lay_out(struct layout *l, struct hosts_options *o, char **command)
{
    o->each = 2;
    o->hosts = "near,far";
    o->port = 7000;
    o->command = command;
    ck_assert_int_eq(layout_init(l, o, UINT64_C(0x5eed00000000) + (uint64_t)getpid(), "near",
                                 &quiet), DESCANT_OK);
}

static char sh[] = "sh", c[] = "-c";

/* Processes of rank 0. */
static bool any_left(const struct layout *l)
{
    char line[160];
    snprintf(line, sizeof line,
             "test -n \"$(grep -lsxz DESCANT_RUN=%s-0 /proc/[0-9]*/environ)\"", l->id);
    return system(line) == 0;
}

/* Words with all that shells look at arrive as they are, and the variables with them. */
START_TEST(words_and_variables)
{
    static char print[] = "for w; do printf '<%s>' \"$w\"; done; echo \" $RANK $WORLD_SIZE $LOCAL_RANK "
                          "$LOCAL_WORLD_SIZE $DESCANT_JOB <$DESCANT_ODD> <$ODD> $PWD\"; cat; "
                          "cat \"${DESCANT_JOB#*secret=}\"; ls -l \"${DESCANT_JOB#*secret=}\" | cut -c 1-10";
    static char odd[] = "a'b\"c\\d $e `f` \n\n*;&|#\t ", empty[] = "", dash[] = "-n";
    char *command[] = {sh, c, print, sh, odd, empty, dash, NULL};
    struct hosts_options o = {.env = "NO,ODD"};
    struct layout l;
    struct shell shell;
    char said[2048], wanted[2048];
    setenv("DESCANT_ODD", odd, 1);
    setenv("DESCANT_JOB", "not this one", 1);
    setenv("ODD", "x y", 1);
    setenv("NO", "no", 1);
    lay_out(&l, &o, command);
    struct script s = {&l, &o, "descant-secret-1:00ff", folder, 3, true, false};
    in_folder("");
    s.folder = folder;
    if (!start_shell(&shell, shells[_i], &s)) {
        layout_fini(&l);
        return;
    }
    ck_assert_int_eq(end_shell(&shell, said, sizeof said), 0);
    snprintf(wanted, sizeof wanted,
             "<%s><><-n> 3 4 1 2 tcp:near:7000,ranks=4,secret=/dev/shm/descant-run-%s-3 <%s> <x y> %s\n"
             "descant-secret-1:00ff\n-rw-------\n", odd, l.id, odd, folder);
    ck_assert_str_eq(said, wanted);
    snprintf(wanted, sizeof wanted, "/dev/shm/descant-run-%s-3", l.id);
    no_file(wanted);
    layout_fini(&l);
}
END_TEST

/* All of it comes to the command, as its standard input alone. */
START_TEST(the_input_of_a_command)
{
    static char reads[] = "cat; [ -e /proc/$$/fd/9 ] && echo twice; exit 0";
    static const char line[] = "a line\nanother\n";
    char *command[] = {sh, c, reads, NULL}, said[1024];
    struct hosts_options o = {.insecure = true};
    struct layout l;
    struct shell shell;
    int input[2];
    lay_out(&l, &o, command);
    const struct script s = {&l, &o, NULL, "/", 0, false, true};
    ck_assert_int_eq(pipe2(input, O_CLOEXEC), 0);
    ck_assert_int_eq(write(input[1], line, strlen(line)), (ssize_t)strlen(line));
    shell_input = input[0];
    bool there = start_shell(&shell, shells[_i], &s);
    close(input[0]);
    close(input[1]);
    if (there) {
        ck_assert_int_eq(end_shell(&shell, said, sizeof said), 0);
        ck_assert_str_eq(said, line);
    }
    layout_fini(&l);
}
END_TEST

static const struct {
    const char *command, *says;
    int status;
} statuses[] = {
    {"exit 0", "", 0}, {"exit 3", "", 3}, {"exit 255", "", 255},
    {"kill -s KILL $$", "", 137}, {"kill -s TERM $$", "", 143},
    {"exec /nowhere/nothing", "nothing", 127}, {"exec /etc", "", 126},
    {"echo out; echo err >&2", "out\nerr\n", 0},
};

START_TEST(statuses_of_commands)
{
    for (int k = 0; k < N(statuses); k++) {
        char line[64];
        char *command[] = {sh, c, line, NULL};
        struct hosts_options o = {.insecure = true};
        struct layout l;
        struct shell shell;
        char said[1024];
        strcpy(line, statuses[k].command);
        lay_out(&l, &o, command);
        const struct script s = {&l, &o, NULL, "/", 0, false, false};
        if (start_shell(&shell, shells[_i], &s)) {
            int status = end_shell(&shell, said, sizeof said);
            ck_assert_msg(status == statuses[k].status, "%s, %s: %d: %s", shells[_i], line, status, said);
            ck_assert_msg(strstr(said, statuses[k].says) != NULL, "%s: %s", line, said);
        }
        layout_fini(&l);
    }
}
END_TEST

START_TEST(a_folder_that_a_host_lacks)
{
    static char nothing[] = "true";
    char *command[] = {nothing, NULL}, said[1024];
    struct hosts_options o = {.insecure = true};
    struct layout l;
    struct shell shell;
    lay_out(&l, &o, command);
    const struct script s = {&l, &o, NULL, "/no'where", 3, false, false};
    if (start_shell(&shell, shells[_i], &s)) {
        ck_assert_int_eq(end_shell(&shell, said, sizeof said), 126);
        ck_assert_msg(strstr(said, "descant run: far has no folder /no'where; start the run in "
                                   "one that all hosts have") != NULL, "%s", said);
    }
    layout_fini(&l);
}
END_TEST

/* By a signal that is told, or by the end of the connection, everything ends that the
 * command has started, also what has left its session or ignores the signal. */
START_TEST(nothing_is_left)
{
    static const char *const told[] = {"TERM\n", "INT\n", "KILL\n", NULL};
    static char all[] = "trap 'exit 5' INT TERM; setsid sleep 4711 & sleep 4711 & "
                        "sh -c 'trap \"\" INT TERM; echo ready; while :; do sleep 1; done' & "
                        "wait; wait; wait";
    char *command[] = {sh, c, all, NULL};
    for (int k = 0; k < N(told); k++) {
        char said[1024], line[256];
        struct hosts_options o = {0};
        struct layout l;
        struct shell shell;
        size_t n = 0;
        lay_out(&l, &o, command);
        const struct script s = {&l, &o, "descant-secret-1:00ff", "/", 0, false, false};
        if (start_shell(&shell, shells[_i], &s)) {
            do
                n += (size_t)read(shell.out, said + n, sizeof said - n - 1);
            while (said[n] = 0, !strstr(said, "ready"));
            if (told[k]) {
                tell(&shell, told[k]);
            } else {
                close(shell.in);
                shell.in = -1;
            }
            ck_assert_int_eq(end_shell(&shell, said, sizeof said), k == 2 ? 137 : 5);
            ck_assert(!any_left(&l));
            snprintf(line, sizeof line, "/dev/shm/descant-run-%s-0", l.id);
            no_file(line);
        }
        layout_fini(&l);
    }
}
END_TEST

/* Where the first shell is killed, too, the watcher does it; and where that was killed
 * with it, the next start of the rank. */
START_TEST(what_an_earlier_start_has_left)
{
    static char sleeps[] = "trap '' TERM; echo ready; sleep 4711; sleep 4711", quick[] = "true";
    char *command[] = {sh, c, sleeps, NULL}, *next[] = {quick, NULL}, said[1024], line[256];
    struct hosts_options o = {0};
    struct layout l;
    struct shell shell, other;
    lay_out(&l, &o, command);
    struct script s = {&l, &o, "descant-secret-1:00ff", "/", 0, false, false};
    if (!start_shell(&shell, shells[_i], &s)) {
        layout_fini(&l);
        return;
    }
    ck_assert_int_gt(read(shell.out, said, sizeof said), 0);
    kill(shell.pid, SIGKILL);
    ck_assert(any_left(&l));
    s.again = true;
    o.command = next;
    ck_assert(start_shell(&other, shells[_i], &s));
    ck_assert_int_eq(end_shell(&other, said, sizeof said), 0);
    WAIT_UNTIL(!any_left(&l), "%s is left", l.id);
    close(shell.in);
    close(shell.out);
    waitpid(shell.pid, NULL, 0);
    snprintf(line, sizeof line, "/dev/shm/descant-run-%s-0", l.id);
    no_file(line);
    layout_fini(&l);
}
END_TEST

int main(void)
{
    TCase *rules = new_case("rules", 60), *scripts = new_case("scripts", 120);
    tcase_add_loop_test(rules, a_layout, 0, N(layouts));
    tcase_add_loop_test(rules, no_layout, 0, N(bad_layouts));
    tcase_add_test(rules, kinds_of_ends);
    tcase_add_loop_test(rules, every_history, -1, 4);
    tcase_add_test(rules, without_end);
    tcase_add_loop_test(rules, lines_of_a_rank, 0, N(lines));
    tcase_add_test(rules, a_long_line_comes_in_several);
    tcase_add_test(rules, a_new_secret);
    tcase_add_test(rules, a_secret_of_a_file);
    tcase_add_loop_test(scripts, words_and_variables, 0, N(shells));
    tcase_add_loop_test(scripts, the_input_of_a_command, 0, N(shells));
    tcase_add_loop_test(scripts, statuses_of_commands, 0, N(shells));
    tcase_add_loop_test(scripts, a_folder_that_a_host_lacks, 0, N(shells));
    tcase_add_loop_test(scripts, nothing_is_left, 0, N(shells));
    tcase_add_loop_test(scripts, what_an_earlier_start_has_left, 0, N(shells));
    return run_cases(rules, scripts, NULL);
}
