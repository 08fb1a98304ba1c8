// policy.c - how the threads of the null server wait: EVFS's policy, with its constants.
#define _GNU_SOURCE
#include "policy.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define WINDOW_MAX_NS 50000
#define WINDOW_MIN_NS 10000
#define LOAD_VALID_NS 64000000

#define BACKLOG 16
#define BACKLOG_STEP 3
#define ALONE 512
#define PATIENCE 32

uint64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

// ---- the time to poll

static _Atomic uint64_t window_ns = WINDOW_MAX_NS, waits_since, load_read_at;
static _Atomic uint32_t running = UINT32_MAX;
static uint32_t cpus;
static bool has_one_cpu;
static int load_file;

void waiting_init(void)
{
    cpus = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t allowed;
    has_one_cpu = !sched_getaffinity(0, sizeof allowed, &allowed) && CPU_COUNT(&allowed) == 1;
    load_file = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
}

// Number of running tasks, as read a short time ago.
static uint32_t running_tasks(uint64_t now)
{
    uint64_t read_at = load_read_at;
    bool valid = read_at && now - read_at < LOAD_VALID_NS;
    if (!valid && atomic_compare_exchange_strong(&load_read_at, &read_at, now)) {
        char text[128];
        unsigned tasks = UINT32_MAX;
        ssize_t len = pread(load_file, text, sizeof text - 1, 0);
        text[len > 0 ? len : 0] = 0;
        if (sscanf(text, "%*s %*s %*s %u/", &tasks) != 1)
            tasks = UINT32_MAX;
        running = tasks;
    }
    return running;
}

uint64_t waiting_window(uint64_t now)
{
    waits_since = now;
    uint64_t window = window_ns;
    return window && running_tasks(now) <= cpus ? window : 0;
}

bool waiting_is_for_one(void)
{
    return has_one_cpu && window_ns;
}

void waiting_slept(uint64_t now)
{
    uint64_t since = waits_since, window = window_ns;
    uint64_t waited = now > since ? now - since : 0;
    if (waited > WINDOW_MAX_NS)
        window = window / 2 < WINDOW_MIN_NS ? 0 : window / 2;
    else if (window * 2 < WINDOW_MIN_NS)
        window = WINDOW_MIN_NS;
    else
        window = window * 2 > WINDOW_MAX_NS ? WINDOW_MAX_NS : window * 2;
    window_ns = window;
}

// ---- the number of leaders

enum advice demand_note(struct demand *d, struct served served, unsigned leaders)
{
    unsigned least = served.is_for_one ? 1 : 2;
    d->too_few = leaders < least ? d->too_few + 1 : 0;
    if (d->too_few >= PATIENCE) {
        d->too_few = 0;
        return ONE_MORE;
    }
    if (!served.awaited)
        return STAY;
    bool is_other = served.client != d->client || served.client == 0;
    bool can_share = !served.is_on_one_cpu;
    bool is_behind = served.was_there == WAS_THERE && is_other && can_share;
    bool with_others = served.with_others && can_share;
    d->client = served.client;
    if (is_behind)
        d->backlog += BACKLOG_STEP;
    else if (served.was_there == WAS_NOT_THERE && d->backlog)
        d->backlog--;
    d->alone = is_behind || with_others || leaders <= least ? 0 : d->alone + 1;
    if (d->backlog >= BACKLOG) {
        d->backlog = 0;
        return ONE_MORE;
    }
    if (d->alone >= ALONE) {
        d->alone = 0;
        return ONE_LESS;
    }
    return STAY;
}

// ---- the leaders

static pthread_mutex_t roles = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t follower = PTHREAD_COND_INITIALIZER;
static unsigned leaders, threads_max;
static _Atomic unsigned seats, idle, busy;
static bool ended;

// As in EVFS, there are two until it turns out that one is enough.
void leaders_init(unsigned threads)
{
    threads_max = threads;
    seats = threads < 2 ? threads : 2;
}

bool leaders_follow(void)
{
    pthread_mutex_lock(&roles);
    while (!ended && leaders >= seats)
        pthread_cond_wait(&follower, &roles);
    bool leads = !ended;
    if (leads) {
        leaders++;
        idle++;
    }
    pthread_mutex_unlock(&roles);
    return leads;
}

void leaders_add_seat(void)
{
    pthread_mutex_lock(&roles);
    if (seats < threads_max) {
        seats++;
        pthread_cond_signal(&follower);
    }
    pthread_mutex_unlock(&roles);
}

bool leaders_leave_seat(void)
{
    pthread_mutex_lock(&roles);
    bool leaves = seats > 1 && idle > 1;
    if (leaves) {
        seats--;
        leaders--;
        idle--;
    }
    pthread_mutex_unlock(&roles);
    return leaves;
}

unsigned leaders_seats(void)
{
    return seats;
}

bool leaders_begin(bool awaited)
{
    idle--;
    return awaited && busy++ > 0;
}

void leaders_answer(bool awaited)
{
    if (awaited)
        busy--;
}

void leaders_finish(void)
{
    idle++;
}

void leaders_end(void)
{
    pthread_mutex_lock(&roles);
    ended = true;
    pthread_cond_broadcast(&follower);
    pthread_mutex_unlock(&roles);
}
