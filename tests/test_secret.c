/* SPDX-License-Identifier: MIT */
/* Secrets of jobs: those that descant secret makes, and files that are refused. */
#include "cli/cli.h"
#include "harness/folder.h"
#include "harness/heard.h"
#include "harness/suite.h"
#include "link/secret.h"

#include <sys/stat.h>

#define DIGITS "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF"

static const char *put_secret(const char *text, mode_t mode)
{
    const char *path = put_file(in_folder("secret"), text, strlen(text));
    ck_assert_int_eq(chmod(path, mode), 0);
    return path;
}

static descant_status read_secret(unsigned char *secret, const char *path)
{
    heard = (struct heard_lines){.least = DESCANT_ERROR};
    return secret_read(secret, path, &listening);
}

START_TEST(a_secret_is_read)
{
    unsigned char secret[SECRET_BYTES];
    static const char *const ends[] = {"\n", ""};
    for (int k = 0; k < N(ends); k++) {
        char text[200];
        snprintf(text, sizeof text, "descant-secret-1:" DIGITS "%s", ends[k]);
        ck_assert_int_eq(read_secret(secret, put_secret(text, k ? 0400 : 0600)),
                         DESCANT_OK);
        for (int i = 0; i < SECRET_BYTES; i++)
            ck_assert_int_eq(secret[i], i % 16 * 0x11);
        ck_assert_int_eq(heard.n, 0);
    }
}
END_TEST

static const struct {
    const char *text;
    mode_t mode;
    const char *says;
} bad[] = {
    {"", 0600, "does not begin with descant-secret-1:; make one with: descant secret > "},
    {"hunter2\n", 0600, "does not begin with descant-secret-1:"},
    {"descant-secret-2:" DIGITS "\n", 0600, "does not begin with descant-secret-1:"},
    {"descant-secret-1:\n", 0600, "is too short"},
    {"descant-secret-1:0011\n", 0600, "is too short"},
    {"descant-secret-1:" DIGITS "0\n", 0600, "is too long"},
    {"descant-secret-1:" DIGITS "\n\n", 0600, "is too long"},
    {"descant-secret-1:" DIGITS "\ndescant-secret-1:" DIGITS "\n", 0600, "is too long"},
    {"descant-secret-1:"
     "g0112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n",
     0600, "no digits from 0 to f"},
    {"descant-secret-1:" DIGITS "\n", 0644,
     "can be read or written by others than its owner "
     "(its mode is 644): chmod 600 "},
    {"descant-secret-1:" DIGITS "\n", 0640, "(its mode is 640)"},
    {"descant-secret-1:" DIGITS "\n", 0620, "(its mode is 620)"},
};

START_TEST(no_secret_is_refused)
{
    unsigned char secret[SECRET_BYTES];
    const char *path = put_secret(bad[_i].text, bad[_i].mode);
    ck_assert_int_eq(read_secret(secret, path), DESCANT_INVALID);
    ck_assert_int_eq(heard.n, 1);
    ck_assert_ptr_nonnull(strstr(heard.text, path));
    ck_assert_msg(strstr(heard.text, bad[_i].says) != NULL, "not '%s': %s", bad[_i].says,
                  heard.text);
    ck_assert_ptr_null(strstr(heard.text, "hunter2"));
}
END_TEST

START_TEST(what_is_no_file_is_refused)
{
    unsigned char secret[SECRET_BYTES];
    ck_assert_int_eq(read_secret(secret, in_folder("none")), DESCANT_INVALID);
    ck_assert_ptr_nonnull(strstr(heard.text, "cannot be read: No such file"));
    ck_assert_int_eq(read_secret(secret, folder), DESCANT_INVALID);
    ck_assert_ptr_nonnull(strstr(heard.text, "is no regular file"));
    ck_assert_int_eq(mkfifo(in_folder("pipe"), 0600), 0); /* and nobody writes to it */
    ck_assert_int_eq(read_secret(secret, in_folder("pipe")), DESCANT_INVALID);
    ck_assert_ptr_nonnull(strstr(heard.text, "is no regular file"));
}
END_TEST

/* descant secret > FILE */
static int make(const char *path, const char *word)
{
    char program[] = "descant", command[] = "secret", more[20],
         *argv[] = {program, command, more};
    snprintf(more, sizeof more, "%s", word);
    FILE *out = fopen(path, "we"), *err = fopen("/dev/null", "we");
    ck_assert(out && err);
    int status = cli_main(*word ? 3 : 2, argv, out, err);
    fclose(out);
    fclose(err);
    return status;
}

START_TEST(the_program_makes_secrets)
{
    unsigned char one[SECRET_BYTES], other[SECRET_BYTES];
    struct stat about;
    const char *path = put_secret("what was there", 0644);
    ck_assert_int_eq(make(path, ""), CLI_DONE);
    ck_assert_int_eq(stat(path, &about), 0);
    ck_assert_int_eq(about.st_mode & 0777, 0600);
    ck_assert_int_eq(read_secret(one, path), DESCANT_OK);
    ck_assert_int_eq(make(path, ""), CLI_DONE);
    ck_assert_int_eq(read_secret(other, path), DESCANT_OK);
    ck_assert_mem_ne(one, other, sizeof one);
    ck_assert_int_eq(make(path, "--size"), CLI_BAD_USE);
    ck_assert_int_eq(make("/dev/null", ""), CLI_DONE); /* no file: it stays open */
    ck_assert_int_eq(stat("/dev/null", &about), 0);
    ck_assert_int_eq(about.st_mode & 0777, 0666);
}
END_TEST

int main(void)
{
    TCase *all = new_case("all", 20);
    tcase_add_checked_fixture(all, make_folder, remove_folder);
    tcase_add_test(all, a_secret_is_read);
    tcase_add_loop_test(all, no_secret_is_refused, 0, N(bad));
    tcase_add_test(all, what_is_no_file_is_refused);
    tcase_add_test(all, the_program_makes_secrets);
    return run_cases(all, NULL);
}
