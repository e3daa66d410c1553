/* SPDX-License-Identifier: MIT */
/* A mean over n ranks, of which s are ranks of the start, has s ÷ n of what these have
 * offered alike. Whole numbers below 2^24 come out of the division exactly, once rounded;
 * so a run's number is in two parts. */
#include "train/start.h"

#include <math.h>

enum { OF_START, RESUMED, FAILED, GENERATION, HIGH, LOW };
enum { PART = 1 << 24 };
/* Generations that differ make a mean that is off by more: 1 ÷ 4096 ranks, at least. */
#define NEAR (1.0 / 8192)

void start_offer(const struct start *mine, double values[START_VALUES])
{
    const double all[START_VALUES] = {
        [OF_START] = 1, [RESUMED] = mine->resumed, [FAILED] = mine->failed,
        [GENERATION] = (double)mine->generation,
        [HIGH] = (double)(mine->run / PART % PART), [LOW] = (double)(mine->run % PART)};

    for (int k = 0; k < START_VALUES; k++)
        values[k] = mine->late ? 0 : all[k];
}

/* Not where values are NaN. */
static bool is_agreed(const double agreed[START_VALUES])
{
    return agreed[OF_START] > 0;
}

enum start_state start_judge(const struct start *mine, const double agreed[START_VALUES])
{
    if (mine->late || !is_agreed(agreed))
        return START_GOOD;
    if (mine->resumed && agreed[RESUMED] < agreed[OF_START])
        return START_NONE_THERE;
    if (!mine->resumed && agreed[RESUMED] > 0)
        return START_NONE_HERE;
    if (agreed[FAILED] > 0)
        return START_UNREAD;
    double generation = agreed[GENERATION] / agreed[OF_START];
    return fabs(generation - (double)mine->generation) < NEAR ? START_GOOD : START_OTHER;
}

static uint64_t part(const double agreed[START_VALUES], int k)
{
    double x = rint(agreed[k] / agreed[OF_START]);
    return x >= 0 && x < PART ? (uint64_t)x : 0;
}

uint64_t start_run(const double agreed[START_VALUES])
{
    if (!is_agreed(agreed))
        return 0;
    uint64_t run = part(agreed, HIGH) * PART + part(agreed, LOW);
    return run ? run : 1;
}

bool start_resumed(const double agreed[START_VALUES])
{
    return is_agreed(agreed) && agreed[RESUMED] > 0;
}
