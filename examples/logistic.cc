// SPDX-License-Identifier: MIT
// The logistic regression of logistic.c in C++:
//   c++ -O3 -o logistic_cc logistic.cc $(pkg-config --cflags --libs descant)
//   for r in 0 1; do RANK=$r WORLD_SIZE=2 MASTER_PORT=29500 ./logistic_cc & done; wait
#include <descant.h>

#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

static void check(descant_status status)
{
    if (status != DESCANT_OK)
        throw std::runtime_error(descant_last_error());
}

class Job {
public:
    explicit Job(const descant_options &options) { check(descant_open(&job_, &options)); }
    ~Job() { descant_close(job_); }
    Job(const Job &) = delete;
    Job &operator=(const Job &) = delete;
    operator descant *() const { return job_; }

private:
    descant *job_ = nullptr;
};

static int train(const char *address)
{
    const std::size_t n = 1024;
    descant_options options = descant_options_default();
    options.job = address;
    options.plan = "shadow-ma";
    Job job(options);
    float *w = descant_alloc(job, "w", n);
    if (!w)
        throw std::runtime_error(descant_last_error());
    check(descant_start(job));
    struct descant_members members;
    check(descant_members(job, &members));

    std::vector<float> planted(n), x(n);
    std::normal_distribution<float> normal;
    std::mt19937 common(1), own(1000 + static_cast<unsigned>(members.rank));
    for (float &p : planted)
        p = normal(common);
    double loss = 0.7;
    for (int step = 0; step < 20000; step++) {
        for (float &v : x)
            v = normal(own);
        float side = std::inner_product(x.begin(), x.end(), planted.begin(), 0.0f);
        float y = side > 0 ? 1.0f : -1.0f;
        float margin = y * std::inner_product(x.begin(), x.end(), w, 0.0f);
        loss = 0.999 * loss + 0.001 * std::log1p(std::exp(-static_cast<double>(margin)));
        for (std::size_t i = 0; i < n; i++)
            w[i] += 0.01f * y * x[i] / (1 + std::exp(margin));
        check(descant_step(job));
    }
    check(descant_finish(job, DESCANT_FINAL_MEAN));
    std::printf("{\"rank\":%d,\"loss\":%.4f}\n", members.rank, loss);
    return 0;
}

int main(int argc, char **argv)
{
    try {
        return train(argc > 1 ? argv[1] : nullptr);
    } catch (const std::exception &e) {
        std::fprintf(stderr, "logistic: %s\n", e.what());
        return 1;
    }
}
