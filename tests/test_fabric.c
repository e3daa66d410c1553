/* SPDX-License-Identifier: MIT */
/* Every fabric's exchanges among trainers who all stay: what comes out, and what is refused.
 * _i is the row. */
#include "harness/fabrics.h"
#include "harness/suite.h"
#include "harness/values.h"

static const size_t sizes[] = {1, 1000, 70000};

START_TEST(mean_is_exact_and_the_same_for_all)
{
    for (int mode = 0; mode < 6; mode++) {
        struct job job;
        job_init(&job, _i, sizes[mode / 2], mode % 2);
        job_form(&job);
        for (int r = 1; r <= 3; r++) {
            double weight[MOST], used[MOST];
            fill_all(&job, r);
            for (int k = 0; k < job.row->size; k++) {
                weight[k] = r == 3 ? 0 : r == 2 ? (k + 1) % 3 + 0.25 * (k == 0) : 1 + k;
                used[k] = r == 3 ? 1 : weight[k];
                peer_begin(&job, k, (struct exchange){.weight = weight[k]});
            }
            finish(&job);
            check_mean(&job, &job.peers[0], used, job.row->size, r);
            for (int k = 0; k < job.row->size; k++) {
                ck_assert_int_eq(job.peers[k].parts, 1);
                ck_assert_int_eq(job.peers[k].f->members, job.row->size);
                ck_assert_int_eq(job.peers[k].members, job.row->size);
                ck_assert_mem_eq(job.peers[k].got, job.peers[0].got, job.n * sizeof(float));
            }
        }
        job_fini(&job);
    }
}
END_TEST

/* Many chunks, one trainer far ahead of the others, and one that peers can read in place. */
START_TEST(mean_out_of_any_memory)
{
    if (!rows[_i].elsewhere)
        return;
    struct job job;
    job_init(&job, _i, 600011, false);
    int size = job.row->size, last = size - 1;
    for (int k = 0; k < size; k++) {
        job.start.in_place = k > 0 && k == last;
        job.elsewhere = !job.start.in_place;
        peer_open(&job, k);
        peer_start(&job, k);
        peer_fill(&job, k, 0);
    }
    begin_all(&job, (struct exchange){.kind = EXCHANGE_STATE});
    finish(&job);
    for (int r = 1; r <= 4; r++) {
        double weight[MOST];
        fill_all(&job, r);
        if (r == 2)
            *at_float(&job.peers[0], 200000) = INFINITY;
        for (int k = 0; k < size; k++) {
            weight[k] = r == 2 && k == 0 ? 0 : k + 1;
            peer_begin(&job, k, (struct exchange){.weight = k + 1});
        }
        for (int k = last; k >= 0; k--)     /* one ahead, as far as it gets */
            while (job.peers[k].open && peer_turn(&job, &job.peers[k]))
                ;
        for (int turn = 0; turn < 1000 && job.peers[r % size].open; turn++)
            peer_turn(&job, &job.peers[r % size]);
        finish(&job);
        for (int k = 0; k < size; k++) {
            ck_assert_int_eq(job.peers[k].f->own_bad, r == 2 && k == 0);
            if (r == 2 && size == 1)
                ck_assert_int_eq(job.peers[k].parts, 0);
            else
                check_mean(&job, &job.peers[k], weight, size, r);
            ck_assert_mem_eq(job.peers[k].got, job.peers[0].got, job.n * sizeof(float));
        }
    }
    job_fini(&job);
}
END_TEST

START_TEST(bad_contribution_is_left_out)
{
    struct job job;
    job_init(&job, _i, 70000, _i % 2);
    job_form(&job);
    int size = job.row->size, last = size - 1;
    for (int r = 1; r <= 2; r++) {      /* the second round is good again */
        double weight[MOST];
        fill_all(&job, r);
        if (r == 1)
            *at_float(&job.peers[last], 69999) = NAN;
        for (int k = 0; k < size; k++) {
            weight[k] = r == 1 && k == last ? 0 : k + 1;
            peer_begin(&job, k, (struct exchange){.weight = k + 1});
        }
        finish(&job);
        for (int k = 0; k < size; k++) {
            const struct peer *peer = &job.peers[k];
            ck_assert_int_eq(peer->f->own_bad, r == 1 && k == last);
            ck_assert_uint_eq(peer->f->bad, 1);
            ck_assert_uint_eq(peer->f->restarts, 0);        /* nobody has left */
            if (r == 1 && size == 1)
                ck_assert_int_eq(peer->parts, 0);
            else
                check_mean(&job, peer, weight, size, r);
        }
    }
    job_fini(&job);
}
END_TEST

START_TEST(weights_may_be_huge)
{
    struct job job;
    job_init(&job, _i, 1000, _i % 2);
    job_form(&job);
    double huge[MOST], one[MOST];
    for (int r = 1; r <= 3; r++) {
        fill_all(&job, r);
        for (int k = 0; k < job.row->size; k++) {
            huge[k] = r == 1 ? 1.7e308 : r == 2 ? 4e-324 : k ? 0 : 1e308;
            one[k] = r == 3 && k ? 0 : 1;
            peer_begin(&job, k, (struct exchange){.weight = huge[k]});
        }
        finish(&job);
        check_mean(&job, &job.peers[0], one, job.row->size, r);
    }
    job_fini(&job);
}
END_TEST

START_TEST(state_comes_from_the_first_or_by_priority)
{
    struct job job;
    job_init(&job, _i, 70000, _i % 2);
    job_form(&job);
    check_state(&job, 0, 0);
    int last = job.row->size - 1;
    fill_all(&job, 1);
    for (int k = 0; k < job.row->size; k++)     /* a STATE among means makes it one for all */
        peer_begin(&job, k, (struct exchange){
            .kind = k == 0 || k == last ? EXCHANGE_STATE : EXCHANGE_MEAN, .weight = 1,
            .priority = k == last ? 2 : 1, .note = 1000 + (uint64_t)k});
    finish(&job);
    check_state(&job, last, 1);
    for (int k = 0; k < job.row->size; k++)
        ck_assert_uint_eq(job.peers[k].note, 1000 + (uint64_t)last);
    job_fini(&job);
}
END_TEST

START_TEST(elastic_keeps_the_sum)
{
    struct job job;
    job_init(&job, _i, 70000, _i % 2);
    job.start.center = true;
    job.start.collective = false;
    job.start.n_outer = 0;
    job_form(&job);
    int size = job.row->size;
    for (int k = 0; k < size; k++)
        for (size_t i = 0; i < job.n; i++)
            if (job.peers[k].f->center[i] !=
                (at_float(&job.peers[0], i) ? value(0, i, 0) : 0))
                ck_abort_msg("float %zu of the centre is not the source's", i);
    double alpha = 0.25, sum = 0, after = 0, moved = 0, keep = *center_at(&job, 5);
    for (int r = 0; r < 3; r++) {
        fill_all(&job, r + 1);
        sum = after = 0;
        for (size_t i = 0; i < job.n; i++) {
            sum += (1 - alpha) * *center_at(&job, i);
            for (int k = 0; k < size; k++)
                sum += at_float(&job.peers[k], i) ? *at_float(&job.peers[k], i) : 0;
        }
        begin_all(&job, (struct exchange){.kind = EXCHANGE_ELASTIC, .alpha = alpha});
        finish(&job);
        for (size_t i = 0; i < job.n; i++) {
            after += (1 - alpha) * *center_at(&job, i);
            for (int k = 0; k < size; k++)
                after += at_float(&job.peers[k], i) ? *at_float(&job.peers[k], i) : 0;
        }
        ck_assert_msg(fabs(after - sum) < 0.02, "%g became %g", sum, after);
    }
    moved = fabs(*center_at(&job, 5) - keep);
    ck_assert(moved > 1e-3);
    job_fini(&job);
}
END_TEST

START_TEST(elastic_needs_nobody)
{
    struct job job;
    job_init(&job, _i, 1000, false);
    job.start.center = true;
    job.start.collective = false;
    job_form(&job);
    int last = job.row->size - 1;
    float W = job.peers[0].f->center[3];
    peer_fill(&job, last, 1);
    peer_begin(&job, last, (struct exchange){.kind = EXCHANGE_ELASTIC, .alpha = 0.5});
    finish(&job);
    ck_assert_float_eq_tol(job.peers[0].f->center[3], W + 0.5f * (value(last, 3, 1) - W),
                           1e-6f);
    job_fini(&job);
}
END_TEST

/* What lies between the segments, or was one that is detached, is nobody's to pull at. */
START_TEST(elastic_leaves_gaps)
{
    struct job job;
    job_init(&job, _i, 70000, true);
    job.start.center = true;
    job.start.collective = false;
    job.start.n_outer = 0;
    job_form(&job);
    float keep = *center_at(&job, job.n - 1);
    size_t gap = fabric_round_up(1000) - 1;
    ck_assert_ptr_null(at_float(&job.peers[0], gap));
    *center_at(&job, gap) = 5;
    for (int k = 0; k < job.row->size; k++)
        job.peers[k].extents[1].n = 0;
    fill_all(&job, 1);
    begin_all(&job, (struct exchange){.kind = EXCHANGE_ELASTIC, .alpha = 0.5});
    finish(&job);
    ck_assert_float_eq(*center_at(&job, gap), 5);
    ck_assert_float_eq(*center_at(&job, job.n - 1), keep);
    ck_assert_float_ne(*center_at(&job, 5), value(0, 5, 0));
    job_fini(&job);
}
END_TEST

START_TEST(final_waits_for_all)
{
    struct job job;
    job_init(&job, _i, 1000, false);
    job_form(&job);
    int size = job.row->size, last = size - 1;
    double weight[MOST] = {1, 1, 1, 1, 1, 1, 1, 1};
    fill_all(&job, 1);
    for (int k = 0; k < last; k++)
        peer_begin(&job, k, (struct exchange){.weight = 1, .final = true});
    if (last > 0)
        ck_assert(!drive(&job, -1, 0.02));
    double only[MOST] = {0};
    only[last] = 1;
    peer_begin(&job, last, (struct exchange){.weight = 1});     /* goes on alone */
    ck_assert(drive(&job, last, BOUND_S));
    check_mean(&job, &job.peers[last], only, size, 1);
    peer_begin(&job, last, (struct exchange){.weight = 1, .final = true});
    finish(&job);
    for (int k = 0; k < size; k++)
        check_mean(&job, &job.peers[k], weight, size, 1);
    job_fini(&job);
}
END_TEST

START_TEST(a_final_state_leaves_the_center)
{
    struct job job;
    job_init(&job, _i, 1000, _i % 2);
    job.start.center = true;
    job.start.collective = false;
    job_form(&job);
    float keep[3] = {0.5f, 1.5f, 2.5f};
    fill_all(&job, 1);
    int last = job.row->size - 1;
    for (size_t i = 0; i < 3; i++)
        *center_at(&job, 400 * i) = keep[i];
    for (int k = 0; k <= last; k++)
        peer_begin(&job, k, (struct exchange){.kind = EXCHANGE_STATE, .final = true,
                                              .priority = (uint64_t)k});
    finish(&job);
    check_state(&job, last, 1);
    for (int k = 0; k <= last; k++)
        for (size_t i = 0; i < 3; i++)
            ck_assert_float_eq(job.peers[k].f->center[400 * i], keep[i]);
    job_fini(&job);
}
END_TEST

START_TEST(begin_gives_up_what_was_open)
{
    struct job job;
    job_init(&job, _i, 1000, false);
    job_form(&job);
    int size = job.row->size, last = size - 1;
    double weight[MOST] = {1, 1, 1, 1, 1, 1, 1, 1};
    fill_all(&job, 1);
    if (last > 0) {
        peer_begin(&job, 0, (struct exchange){.weight = 1});
        ck_assert(!drive(&job, -1, 0.02));
        peer_begin(&job, 0, (struct exchange){.weight = 1, .final = true});
        for (int k = 1; k < size; k++)
            peer_begin(&job, k, (struct exchange){.weight = 1});
        weight[0] = 0;
        ck_assert(drive(&job, last, BOUND_S));
        check_mean(&job, &job.peers[last], weight, size, 1);
        ck_assert(job.peers[0].open);
    }
    job_fini(&job);
}
END_TEST

/* Its memory is not read any more; the round begins again with the state that it gives now. */
START_TEST(giving_up_takes_other_memory_back)
{
    if (!rows[_i].elsewhere || rows[_i].size == 1)
        return;
    struct job job;
    job_init(&job, _i, 70000, false);
    job_form(&job);
    fill_all(&job, 1);
    peer_begin(&job, 0, (struct exchange){.weight = 1});
    ck_assert(!drive(&job, -1, 0.02));
    float *old = job.peers[0].memory;
    job.peers[0].memory = NULL;
    for (size_t i = 0; i < 2; i++) {
        struct extent *e = &job.peers[0].extents[i];
        e->p = job.peers[0].f->contribution + e->at;
    }
    peer_fill(&job, 0, 2);
    peer_begin(&job, 0, (struct exchange){.kind = EXCHANGE_STATE});
    free(old);
    for (int k = 1; k < job.row->size; k++)
        peer_begin(&job, k, (struct exchange){.weight = 1});
    finish(&job);
    check_state(&job, 0, 2);
    job_fini(&job);
}
END_TEST

/* Lengths, or ends, that are not the same: all fail, and know why. */
START_TEST(what_differs_fails_for_all)
{
    for (int mode = 0; mode < 4; mode++) {
        struct job job;
        job_init(&job, _i, 70000, false);
        job_form(&job);
        int size = job.row->size, last = size - 1, failed = 0;
        fill_all(&job, 1);
        for (int k = 0; k < size && size > 1; k++) {
            struct exchange x = {.weight = 1, .in = &job.peers[k].in, .n = job.n,
                                 .agree = mode > 0 && k == last, .final = mode > 1};
            x.n -= mode == 0 && k == last;
            x.kind = mode == 3 && k == last ? EXCHANGE_STATE : EXCHANGE_MEAN;
            ck_assert_int_eq(job.row->type->begin(job.peers[k].f, &x), DESCANT_OK);
        }
        while (size > 1 && failed < size) {
            failed = 0;
            for (int k = 0; k < size; k++) {
                struct fabric_part part;
                enum fabric_progress p = job.row->type->poll(job.peers[k].f, &part);
                ck_assert(p != FABRIC_PART && p != FABRIC_DONE);
                failed += p == FABRIC_FAILED;
                if (p == FABRIC_FAILED)
                    ck_assert_int_eq(job.peers[k].f->status, DESCANT_MISMATCH);
            }
        }
        job_fini(&job);
    }
}
END_TEST

START_TEST(exchanges_are_checked)
{
    struct job job;
    job_init(&job, _i, 1000, false);
    peer_open(&job, 0);
    struct peer *peer = &job.peers[0];
    struct exchange x = {.in = &peer->in, .n = job.n, .weight = 1};
    ck_assert_int_eq(job.row->type->begin(peer->f, &x), DESCANT_ORDER);  /* not started */
    peer_start(&job, 0);
    ck_assert_int_eq(job.row->type->begin(peer->f, &x), DESCANT_ORDER);  /* the state is first */
    job_fini(&job);
    job_init(&job, _i, 1000, false);
    job_form(&job);
    peer = &job.peers[0];
    x.in = &peer->in;
    const double weights[] = {-1, NAN, INFINITY};
    for (int i = 0; i < 3; i++) {
        x.weight = weights[i];
        ck_assert_int_eq(job.row->type->begin(peer->f, &x), DESCANT_INVALID);
    }
    x.weight = 1;
    x.n = job.n + 1;
    ck_assert_int_eq(job.row->type->begin(peer->f, &x), DESCANT_INVALID);
    x.n = 1;
    x.kind = EXCHANGE_ELASTIC;
    ck_assert_int_eq(job.row->type->begin(peer->f, &x), DESCANT_INVALID);  /* no centre */
    job_fini(&job);
}
END_TEST

/* Why all fail, and none has a part. */
static descant_status all_fail(struct job *job)
{
    int size = job->row->size;
    for (int failed = 0; failed < size;) {
        failed = 0;
        for (int k = 0; k < size; k++) {
            struct fabric_part part;
            enum fabric_progress p = job->row->type->poll(job->peers[k].f, &part);
            ck_assert(p != FABRIC_PART && p != FABRIC_DONE);
            failed += p == FABRIC_FAILED;
        }
    }
    for (int k = 1; k < size; k++)
        ck_assert_int_eq(job->peers[k].f->status, job->peers[0].f->status);
    return job->peers[0].f->status;
}

START_TEST(manifests_must_agree)
{
    struct job job;
    job_init(&job, _i, 1000, false);
    struct fabric_start other = job.start;
    other.manifest = "plan x\nsegment b 7\n";
    if (job.row->size > 1) {
        for (int k = 0; k < (job.ranks ? job.row->size : 2); k++)
            peer_open(&job, k);
        peer_start(&job, 0);
        for (int k = 2; job.ranks && k < job.row->size; k++)
            peer_start(&job, k);
        descant_status status = job.row->type->start(job.peers[1].f, &other);
        if (job.ranks) {                /* messages tell, and take their time */
            ck_assert_int_eq(status, DESCANT_OK);
            job.peers[1].extents[0].p = job.peers[1].f->contribution;
            begin_all(&job, (struct exchange){.kind = EXCHANGE_STATE});
            status = all_fail(&job);
        }
        ck_assert_int_eq(status, DESCANT_MISMATCH);
        ck_assert_msg(strstr(job.line, "segment a 7") && strstr(job.line, "segment b 7"),
                      "the message is \"%s\"", job.line);
    }
    job_fini(&job);
}
END_TEST

START_TEST(share_gives_one_block)
{
    struct job job;
    job_init(&job, _i, 1, false);
    void *other = NULL, *block = NULL, *again = NULL;
    for (int k = 0; k < job.row->size; k++) {
        peer_open(&job, k);
        struct fabric *f = job.peers[k].f;
        int per_host = job.row->free ? 1 : job.row->per_host ? job.row->per_host : MOST;
        int before = k % per_host;      /* of this host */
        ck_assert_int_eq(job.row->type->share(f, "x", 100, &block), DESCANT_OK);
        ck_assert_int_eq(((char *)block)[99], before);  /* zero at first, then one for all */
        ((char *)block)[99]++;
        ck_assert_int_eq(job.row->type->share(f, "y", 100, &other), DESCANT_OK);
        ck_assert_int_eq(((char *)other)[99], 0);
        ck_assert_int_eq(job.row->type->share(f, "x", 100, &again), DESCANT_OK);
        ((char *)again)[0] = 1;
        ck_assert_int_eq(((char *)block)[0], 1);
        ck_assert_int_eq(job.row->type->share(f, "x", 101, &again), DESCANT_MISMATCH);
    }
    job_fini(&job);
}
END_TEST

START_TEST(taken_rank_is_refused)
{
    struct job job;
    job_init(&job, _i, 1, false);
    peer_open(&job, 0);
    if (job.row->type != &fabric_self) {
        struct fabric *f = NULL;
        struct fabric_options options = options_of(&job, 0);
        ck_assert_int_eq(job.row->type->open(&f, &options), DESCANT_BAD_RANK);
        ck_assert_ptr_null(f);
    }
    job_fini(&job);
}
END_TEST

int main(void)
{
    TCase *all = new_case("exchanges", 60);
    add_thirds(all, mean_is_exact_and_the_same_for_all, N_ROWS);
    add_thirds(all, mean_out_of_any_memory, N_ROWS);
    add_thirds(all, bad_contribution_is_left_out, N_ROWS);
    add_thirds(all, weights_may_be_huge, N_ROWS);
    add_thirds(all, state_comes_from_the_first_or_by_priority, N_ROWS);
    add_thirds(all, elastic_keeps_the_sum, N_ROWS);
    add_thirds(all, elastic_needs_nobody, N_ROWS);
    add_thirds(all, elastic_leaves_gaps, N_ROWS);
    add_thirds(all, final_waits_for_all, N_ROWS);
    add_thirds(all, a_final_state_leaves_the_center, N_ROWS);
    add_thirds(all, begin_gives_up_what_was_open, N_ROWS);
    add_thirds(all, giving_up_takes_other_memory_back, N_ROWS);
    add_thirds(all, what_differs_fails_for_all, N_ROWS);
    add_thirds(all, exchanges_are_checked, N_ROWS);
    add_thirds(all, manifests_must_agree, N_ROWS);
    add_thirds(all, share_gives_one_block, N_ROWS);
    add_thirds(all, taken_rank_is_refused, N_ROWS);
    return run_cases(all, NULL);
}
