/* SPDX-License-Identifier: MIT */
/* Parcels between rank 0 and the others, on every fabric that has them. All ranks live in this
 * thread. A head tells which parcel it is of; each float of it must be that parcel's. */
#include "fabric/fabric.h"
#include "harness/suite.h"
#include "machine/roster.h"
#include "mpi_loopback.h"

#include <check.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 4, N = 400003, TURNS = 100000 };

static const struct fabric_type *const rows[] = {&fabric_shm, &fabric_loopback};
enum { N_ROWS = sizeof rows / sizeof *rows };

static const struct fabric_type *type;
static struct fabric *f[MOST];
static struct loopback *ranks;
static char name[64];
static int size;

static void open_rank(int k)
{
    const struct fabric_options o = {.address = type == &fabric_shm ? name : "", .rank = k,
                                     .start_s = 20, .context = ranks};
    ck_assert_msg(type->open(&f[k], &o) == DESCANT_OK, "%s", descant_last_error());
}

static void open_all(int row, int n)
{
    type = rows[row];
    size = n;
    snprintf(name, sizeof name, "post-%d", (int)getpid());
    ranks = type == &fabric_loopback ? loopback_create_hosts(n, 1, 7) : NULL;
    for (int k = 0; k < n; k++)
        open_rank(k);
    for (int k = 1; k < n; k++) {
        ck_assert_int_eq(type->post->room(f[k], 0, 0), DESCANT_OK);
        ck_assert_int_eq(type->post->room(f[0], k, 0), DESCANT_OK);
    }
}

static void make_room(int k)
{
    ck_assert_int_eq(type->post->room(f[k], 0, N), DESCANT_OK);
    ck_assert_int_eq(type->post->room(f[0], k, N), DESCANT_OK);
}

static void close_rank(int k)
{
    type->close(f[k]);
    f[k] = NULL;
}

static void close_all(void)
{
    for (int k = 0; k < size; k++)
        if (f[k])
            close_rank(k);
    loopback_destroy(ranks);
    ck_assert_int_eq(memory_live(), 0);
}

static void move(int stopped)
{
    for (int k = 0; k < size; k++)
        if (f[k] && k != stopped)
            ck_assert_int_eq(type->post->move(f[k]), DESCANT_OK);
}

static float value(int number, size_t i)
{
    return (float)((size_t)number * 7 + i % 1000);
}

static void send(int from, int to, int number, size_t n)
{
    int head[POST_HEAD / sizeof(int)] = {number};
    ck_assert(type->post->free(f[from], to));
    float *box = n ? type->post->box(f[from], to) : NULL;
    for (size_t i = 0; i < n; i++)
        box[i] = value(number, i);
    type->post->send(f[from], to, head, n);
    memset(head, 9, sizeof head);
}

/* Rank `at` has that parcel now. */
static void expect(int at, int from, int number, size_t n)
{
    struct parcel parcel;
    int is;
    ck_assert(type->post->look(f[at], from, &parcel));
    memcpy(&is, parcel.head, sizeof is);
    ck_assert_int_eq(is, number);
    ck_assert_uint_eq(parcel.n, n);
    size_t same = 0;
    while (same < n && memcmp(&parcel.values[same], &(float){value(number, same)},
                              sizeof(float)) == 0)
        same++;
    ck_assert_uint_eq(same, n);
}

static void await(int at, int from, int number, size_t n, int stopped)
{
    struct parcel parcel;
    for (int turn = 0; !type->post->look(f[at], from, &parcel); turn++) {
        ck_assert_int_lt(turn, TURNS);
        move(stopped);
    }
    expect(at, from, number, n);
}

static void await_free(int from, int to)
{
    for (int turn = 0; !type->post->free(f[from], to); turn++) {
        ck_assert_int_lt(turn, TURNS);
        move(-1);
    }
}

static bool none(int at, int from)
{
    struct parcel parcel;
    for (int turn = 0; turn < 200; turn++)
        move(-1);
    return !type->post->look(f[at], from, &parcel);
}

START_TEST(heads_go_before_there_is_room)
{
    open_all(_i, 2);
    ck_assert(type->post->who(f[0], 1) != 0 && type->post->who(f[1], 0) != 0);
    ck_assert(type->post->who(f[0], 1) == type->post->who(f[1], 1));
    ck_assert(none(0, 1) && none(1, 0));
    send(1, 0, 5, 0);
    await(0, 1, 5, 0, -1);
    type->post->taken(f[0], 1);
    await_free(1, 0);
    ck_assert(none(0, 1) && none(1, 0));
    close_all();
}
END_TEST

/* Both ways at once, between 0 and each of the others, with floats and without. */
START_TEST(each_parcel_comes_once_and_whole)
{
    open_all(_i, MOST);
    for (int k = 1; k < MOST; k++)
        make_room(k);
    for (int number = 1; number < 6; number++) {
        for (int k = 1; k < MOST; k++) {
            send(0, k, 10 * number + k, number % 2 ? N : 0);
            send(k, 0, 100 * number + k, number == 2 ? 1 : N);
        }
        for (int k = 1; k < MOST; k++) {
            await(k, 0, 10 * number + k, number % 2 ? N : 0, -1);
            await(0, k, 100 * number + k, number == 2 ? 1 : N, -1);
            type->post->taken(f[k], 0);
            type->post->taken(f[0], k);
        }
        for (int k = 1; k < MOST; k++) {
            await_free(k, 0);
            await_free(0, k);
        }
    }
    ck_assert_uint_ge(f[0]->bytes, 3 * (uint64_t)(MOST - 1) * N * sizeof(float));
    close_all();
}
END_TEST

/* What was not taken stays as it is, and its sender is not free; others' come meanwhile. */
START_TEST(who_takes_nothing_holds_up_nobody)
{
    open_all(_i, 3);
    make_room(1);
    make_room(2);
    send(1, 0, 1, N);
    await(0, 1, 1, N, -1);
    send(0, 1, 9, N);
    for (int number = 2; number < 5; number++) {
        send(2, 0, number, N);
        await(0, 2, number, N, 1);
        type->post->taken(f[0], 2);
        for (int turn = 0; !type->post->free(f[2], 0); turn++)
            move(1);
        ck_assert(!type->post->free(f[1], 0));
    }
    expect(0, 1, 1, N);
    type->post->taken(f[0], 1);
    await(1, 0, 9, N, -1);
    type->post->taken(f[1], 0);
    await_free(1, 0);
    close_all();
}
END_TEST

/* On a machine ranks come and go: what one said last is there, and its heir has another number. */
START_TEST(who_has_gone_is_told_from_who_comes)
{
    struct parcel parcel;
    open_all(0, 3);
    make_room(1);
    uint64_t first = type->post->who(f[0], 1), control = type->post->who(f[1], 0);
    send(1, 0, 1, N);
    send(0, 1, 2, N);
    close_rank(1);
    ck_assert_uint_eq(type->post->who(f[0], 1), 0);
    expect(0, 1, 1, N);
    open_rank(1);
    ck_assert_int_eq(type->post->room(f[1], 0, 0), DESCANT_OK);
    uint64_t second = type->post->who(f[0], 1);
    ck_assert(second != 0 && second != first);
    ck_assert(type->post->look(f[1], 0, &parcel));
    ck_assert(parcel.to == first && parcel.from == control && parcel.values == NULL);
    type->post->taken(f[1], 0);
    ck_assert(!type->post->free(f[1], 0));
    type->post->taken(f[0], 1);
    make_room(1);
    send(1, 0, 3, N);
    ck_assert(type->post->look(f[0], 1, &parcel) && parcel.from == second);
    expect(0, 1, 3, N);

    close_rank(0);
    ck_assert_uint_eq(type->post->who(f[1], 0), 0);
    open_rank(0);
    ck_assert_int_eq(type->post->room(f[0], 1, 0), DESCANT_OK);
    ck_assert_int_eq(type->post->room(f[0], 1, N), DESCANT_OK);
    expect(0, 1, 3, N);
    ck_assert(type->post->look(f[0], 1, &parcel) && parcel.to == control);
    ck_assert(type->post->who(f[1], 0) != control);
    close_all();
}
END_TEST

START_TEST(rooms_that_cannot_be)
{
    open_all(_i, 3);
    ck_assert_int_eq(type->post->room(f[0], 0, 0), DESCANT_BAD_RANK);
    ck_assert_int_eq(type->post->room(f[1], 2, 0), DESCANT_BAD_RANK);
    ck_assert_int_eq(type->post->room(f[0], 1000, 0), DESCANT_BAD_RANK);
    ck_assert_int_eq(type->post->room(f[0], -1, 0), DESCANT_BAD_RANK);
    ck_assert_int_eq(type->post->room(f[0], 1, SIZE_MAX / 4), type == &fabric_shm
                     ? DESCANT_MEMORY : DESCANT_UNSUPPORTED);
    close_all();
}
END_TEST

/* Not by a second try either, where the blocks are all taken. */
START_TEST(slips_that_cannot_be_shared)
{
    open_all(0, 1);
    for (int k = 0; k < MACHINE_BLOCKS; k++) {
        char block[16];
        void *at;
        snprintf(block, sizeof block, "block-%d", k);
        ck_assert_int_eq(type->share(f[0], block, 1, &at), DESCANT_OK);
    }
    for (int k = 0; k < 2; k++)
        ck_assert_int_eq(type->post->room(f[0], 1, 0), DESCANT_MEMORY);
    close_all();
}
END_TEST

int main(void)
{
    TCase *tests = new_case("post", 60);
    tcase_add_loop_test(tests, heads_go_before_there_is_room, 0, N_ROWS);
    tcase_add_loop_test(tests, each_parcel_comes_once_and_whole, 0, N_ROWS);
    tcase_add_loop_test(tests, who_takes_nothing_holds_up_nobody, 0, N_ROWS);
    tcase_add_test(tests, who_has_gone_is_told_from_who_comes);
    tcase_add_loop_test(tests, rooms_that_cannot_be, 0, N_ROWS);
    tcase_add_test(tests, slips_that_cannot_be_shared);
    return run_cases(tests, NULL);
}
