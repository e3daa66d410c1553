/* SPDX-License-Identifier: MIT */
/* How fast the simulated link is: worlds of 2, 16 and 1,024 ranks over 10 Gb/s and 50 us,
 * in which all send to the next rank, or to all others, and go on when what is sent to
 * them has come. One JSON object each, with the simulated seconds and the messages of a
 * second of one core. */
#include "base/base.h"
#include "link/simulated.h"

#include <stdio.h>

enum { MOST = 1024, WORD = 128, PIECE = 4096, TAG = 1 };
#define SLEEP_NS UINT64_C(1000000000000)

struct bench_rank {
    struct link *link;
    int left;                   /* messages of its round that have not ended */
    int rounds;
};

static struct simulated *world;
static struct bench_rank ranks[MOST];
static unsigned char out[PIECE], in[PIECE];

static bool exchange(struct bench_rank *rank, int to, int from, size_t bytes)
{
    rank->left += 2;
    return link_simulated.receive(rank->link, in, bytes,
        &(struct link_message){from, TAG, 0, rank}) &&
           link_simulated.send(rank->link, out, bytes,
        &(struct link_message){to, TAG, 0, rank});
}

static bool begin(int k, int n, bool all)
{
    bool good = true;

    if (!all)
        return exchange(&ranks[k], (k + 1) % n, (k + n - 1) % n, PIECE);
    for (int i = 1; i < n && good; i++)
        good = exchange(&ranks[k], (k + i) % n, (k + n - i) % n, WORD);
    return good;
}

static bool turn(int k, int n, bool all)
{
    struct bench_rank *rank = &ranks[k];
    struct link_news news;

    if (!link_simulated.collect(rank->link, &news))
        return false;
    rank->left -= news.n_ended;
    if (rank->left == 0) {
        rank->rounds++;
        return begin(k, n, all);
    }
    link_simulated.sleep(rank->link, SLEEP_NS, 0);
    return true;
}

static void report(int n, bool all, uint64_t began_ns, uint64_t began_cpu_ns)
{
    struct json json;
    struct simulated_figures figures = simulated_figures(world);
    double cpu_s = (double)(clock_thread_cpu_ns() - began_cpu_ns) * 1e-9;

    json_begin(&json, stdout);
    json_text(&json, "bench", "link");
    json_text(&json, "traffic", all ? "all" : "ring");
    json_int(&json, "ranks", n);
    json_int(&json, "bytes", all ? WORD : PIECE);
    json_int(&json, "rounds", ranks[0].rounds);
    json_int(&json, "messages", (int64_t)figures.messages);
    json_real(&json, "simulated_s_per_s",
              (double)(simulated_now(world) - began_ns) * 1e-9 / cpu_s);
    json_real(&json, "messages_per_s", (double)figures.messages / cpu_s);
    json_real(&json, "events_per_s", (double)figures.events / cpu_s);
    json_end(&json);
}

static bool run(int n, bool all, uint64_t most)
{
    const struct simulated_options options = {.ranks = n, .seed = 1, .latency_ns = 50000,
                                              .jitter_ns = 10000, .bytes_per_s = 1.25e9,
                                              .fixed = true};
    struct link_place place;
    bool good = (world = simulated_create(&options)) != NULL;

    for (int k = 0; k < n && good; k++) {
        struct link_entry entry = {.context = world, .rank = k};
        ranks[k].link = link_simulated.meet(&entry, &place);
        ranks[k].left = 0;
        ranks[k].rounds = -1;
        good = ranks[k].link != NULL;
    }
    uint64_t began = good ? simulated_now(world) : 0, cpu = clock_thread_cpu_ns();
    while (good && simulated_figures(world).messages < most) {
        int k = simulated_turn(world, UINT64_MAX);
        good = k >= 0 && turn(k, n, all);
    }
    if (good)
        report(n, all, began, cpu);
    for (int k = 0; k < n; k++)
        if (ranks[k].link)
            link_simulated.close(ranks[k].link, false);
    simulated_destroy(world);
    return good;
}

int main(void)
{
    static const int sizes[] = {2, 16, 1024};
    bool good = true;

    for (int i = 0; i < 3 && good; i++)
        good = run(sizes[i], false, 1000000) && run(sizes[i], true, 3000000);
    return !good;
}
