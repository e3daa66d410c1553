/* SPDX-License-Identifier: MIT */
/* A table whose rows have owners, so that it may be larger than a machine. Each row learns a value
 * that follows from its number; every trainer sees rows by chance.
 *
 *   cc -O2 -o owned owned.c $(pkg-config --cflags --libs descant)
 *   for r in 0 1; do
 *       RANK=$r WORLD_SIZE=2 DESCANT_JOB=tcp:127.0.0.1:29500 ./owned &
 *   done; wait
 *
 * The first trainer says what the mean squared error over all rows is, and each one how many
 * rows it has had for others. */
#include <descant.h>
#include <stdio.h>
#include <stdlib.h>

#define TRY(call)                                                                            \
    do {                                                                                     \
        if ((call) != DESCANT_OK) {                                                          \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #call);                       \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

enum { ROWS = 20000, WIDTH = 8, BATCH = 2000, STEPS = 400, AHEAD = 2 };

static struct descant *job;
static int table;

static float wanted(uint64_t row, int k)
{
    return (float)((row * 2654435761u + (uint64_t)k * 40503u) % 1000) / 500 - 1;
}

static void choose(uint64_t *state, uint64_t *rows)
{
    for (int i = 0; i < BATCH; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        rows[i] = (*state >> 33) % ROWS;
    }
}

static void start(void)
{
    struct descant_options options = descant_options_default();
    struct descant_owned shape = descant_owned_default();       /* Adagrad */

    options.plan = "shadow-ma";
    options.owned = 1;                          /* MPI must know; others need not */
    shape.rows = ROWS;
    shape.width = WIDTH;
    shape.spread = 0.1;
    TRY(descant_open(&job, &options));
    TRY(descant_alloc(job, "w", 1) ? DESCANT_OK : DESCANT_MEMORY);      /* all else */
    TRY(descant_owned_table(job, "table", &shape, &table));
    TRY(descant_start(job));
}

/* AHEAD batches are on their way while one is trained on. */
static void train(uint64_t state)
{
    static uint64_t rows[AHEAD][BATCH];
    static float gradients[BATCH][WIDTH];
    struct descant_rows *batch[AHEAD];
    float *block;

    for (int k = 0; k < AHEAD; k++) {
        choose(&state, rows[k]);
        TRY(descant_rows_fetch(job, table, rows[k], BATCH, &batch[k]));
    }
    for (int step = 0; step < STEPS; step++) {
        int at = step % AHEAD;
        TRY(descant_rows_wait(job, batch[at], &block));
        for (int i = 0; i < BATCH; i++)
            for (int k = 0; k < WIDTH; k++)
                gradients[i][k] = block[i * WIDTH + k] - wanted(rows[at][i], k);
        TRY(descant_rows_push_more(job, batch[at], &gradients[0][0], 0.5));
        choose(&state, rows[at]);               /* the batch after the next one */
        TRY(descant_rows_fetch(job, table, rows[at], BATCH, &batch[at]));
        TRY(descant_step(job));
    }
    for (int k = 0; k < AHEAD; k++)
        TRY(descant_rows_drop(job, batch[k]));
}

static double mean_error(void)
{
    static uint64_t all[ROWS];
    struct descant_rows *batch;
    float *block;
    double error = 0;

    for (uint64_t row = 0; row < ROWS; row++)
        all[row] = row;
    TRY(descant_rows_fetch(job, table, all, ROWS, &batch));
    TRY(descant_rows_wait(job, batch, &block));
    for (uint64_t row = 0; row < ROWS; row++)
        for (int k = 0; k < WIDTH; k++) {
            double off = (double)(block[row * WIDTH + (uint64_t)k] - wanted(row, k));
            error += off * off / ROWS / WIDTH;
        }
    TRY(descant_rows_drop(job, batch));
    return error;
}

int main(void)
{
    struct descant_members members;
    struct descant_stats stats;

    start();
    TRY(descant_members(job, &members));
    train((uint64_t)members.rank + 1);
    TRY(descant_finish(job, DESCANT_FINAL_MEAN));
    if (members.rank == 0)                      /* the others serve their rows until close */
        printf("%d trainers, mean error %.5f\n", members.size, mean_error());
    TRY(descant_stats(job, &stats));
    printf("trainer %d has served %llu rows\n", members.rank,
           (unsigned long long)stats.rows_served);
    TRY(descant_close(job));
    return 0;
}
