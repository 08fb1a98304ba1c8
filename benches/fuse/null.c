// null.c - a FUSE server that does as little as possible: the limit for any server on this machine.
//
//   null [--threads N] [--blocking] [--on-device DEVICE] DIR
//
// It mounts an empty file system at DIR, whose files are in memory, by the kernel's interface
// without a library, as root. The kernel sends it the same requests as EVFS. N threads (8) serve;
// they wait as those of EVFS do (policy.c), or with --blocking each in a read of its own. With
// --on-device the mount is of the type fuseblk, in which close(2) waits for the server.
//
// SIGUSR1 prints the number of requests of each kind so far as one line of JSON; so does the end,
// after umount(8), SIGTERM or SIGINT.
#define _GNU_SOURCE
#include "policy.h"
#include "serve.h"
#include "tree.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PROBE 8 // as in crates/fuse-mount/src/session.rs

static int device;
static bool awaits_release; // close(2) waits for the answer to RELEASE
static _Atomic unsigned serving;
static _Atomic bool ended;

struct worker {
    int polled, slept_on; // descriptors of the mount whose reads do not wait, and do
    char *in, *out;
    uint32_t received;
    struct demand demand;
};

static void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("null: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

// ---- receive loops

enum { NOTHING = 0, ENDED = -1 };

// Returns the length of a request, NOTHING or ENDED.
static ssize_t receive(int fd, char *in)
{
    for (;;) {
        ssize_t len = read(fd, in, BUFFER_BYTES);
        if (len > 0)
            return len;
        if (errno == EAGAIN)
            return NOTHING;
        if (errno == ENODEV || errno == ECONNABORTED)
            return ENDED;
        if (errno != EINTR && errno != ENOENT)
            die("cannot receive requests: %s", strerror(errno));
    }
}

static bool is_awaited(const char *in)
{
    const struct fuse_in_header *h = (const void *)in;
    switch (h->opcode) {
    case FUSE_RELEASE:
        return awaits_release;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        return false;
    case FUSE_READ:
    case FUSE_WRITE:
        return h->pid != 0;
    default:
        return true;
    }
}

static void answer(int fd, const struct worker *w, bool leads)
{
    size_t len = serve(w->in, w->out);
    if (leads)
        leaders_answer(is_awaited(w->in));
    // The kernel may have abandoned the request, or the mount may have ended.
    if (len && write(fd, w->out, len) < 0 && errno != ENOENT && errno != ENODEV && errno != EPERM)
        die("the kernel did not accept a reply: %s", strerror(errno));
}

// Waits for a request as a leader does, and notes how. Returns the descriptor it was read from.
static int await_request(struct worker *w, struct served *served)
{
    uint64_t start = monotonic_ns(), window = waiting_window(start);
    served->is_on_one_cpu = waiting_is_for_one();
    served->is_for_one = window > 0 || served->is_on_one_cpu;
    served->was_there = NOT_ASKED;
    if (leaders_seats() > 1)
        window = 0;
    // Without polling, a read in vain before the one that waits would be a waste.
    if (window || ++w->received % PROBE == 0) {
        ssize_t len = receive(w->polled, w->in);
        served->was_there = len == NOTHING ? WAS_NOT_THERE : WAS_THERE;
        if (len != NOTHING)
            return len == ENDED ? ENDED : w->polled;
    }
    while (monotonic_ns() - start < window) {
        sched_yield();
        ssize_t len = receive(w->polled, w->in);
        if (len != NOTHING)
            return len == ENDED ? ENDED : w->polled;
    }
    if (receive(w->slept_on, w->in) == ENDED)
        return ENDED;
    waiting_slept(monotonic_ns());
    return w->slept_on;
}

// Serves as a leader until this thread is none. Returns false at the end of the mount.
static bool lead(struct worker *w)
{
    for (;;) {
        struct served served;
        int fd = await_request(w, &served);
        if (fd == ENDED)
            return false;
        const struct fuse_in_header *header = (const void *)w->in;
        bool awaited = is_awaited(w->in);
        // The kernel does not name the client that waits for RELEASE.
        served.awaited = awaited && header->opcode != FUSE_RELEASE;
        served.client = header->pid;
        served.with_others = leaders_begin(awaited);
        answer(fd, w, true);
        leaders_finish();
        enum advice advice = demand_note(&w->demand, served, leaders_seats());
        if (advice == ONE_MORE)
            leaders_add_seat();
        if (advice == ONE_LESS && leaders_leave_seat())
            return true;
    }
}

static void end_of_thread(void)
{
    ended = true;
    leaders_end();
    if (--serving == 0)
        kill(getpid(), SIGTERM);
}

// As EVFS, no thread to which the kernel writes dirty pages waits for other pages to be written.
static void exempt_from_throttling(void)
{
    prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
}

static void *serve_as_evfs(void *arg)
{
    exempt_from_throttling();
    while (leaders_follow() && lead(arg))
        ;
    end_of_thread();
    return NULL;
}

static void *serve_blocking(void *arg)
{
    struct worker *w = arg;
    exempt_from_throttling();
    while (receive(w->slept_on, w->in) != ENDED)
        answer(w->slept_on, w, false);
    end_of_thread();
    return NULL;
}

static int another(int flags)
{
    int copy = open("/dev/fuse", O_RDWR | O_CLOEXEC | flags);
    if (copy < 0 || ioctl(copy, FUSE_DEV_IOC_CLONE, &device))
        die("cannot open /dev/fuse again: %s", strerror(errno));
    return copy;
}

static void start_threads(unsigned threads, bool blocking)
{
    waiting_init();
    leaders_init(threads);
    serving = threads;
    for (unsigned i = 0; i < threads; i++) {
        struct worker *w = calloc(1, sizeof *w);
        if (w) {
            w->in = aligned_alloc(4096, BUFFER_BYTES);
            w->out = aligned_alloc(4096, BUFFER_BYTES);
        }
        if (!w || !w->in || !w->out)
            die("out of memory");
        w->polled = another(O_NONBLOCK);
        w->slept_on = another(0);
        pthread_t thread;
        int failed = pthread_create(&thread, NULL, blocking ? serve_blocking : serve_as_evfs, w);
        if (failed)
            die("cannot start a thread: %s", strerror(failed));
    }
}

// ---- start and end

static void mount_at(const char *dir, const char *block_device)
{
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0)
        die("cannot open /dev/fuse: %s", strerror(errno));
    char options[128];
    snprintf(options, sizeof options,
             "fd=%d,rootmode=40755,user_id=0,group_id=0,default_permissions,allow_other,"
             "max_read=%u%s",
             device, PIECE_BYTES, block_device ? ",blksize=4096" : "");
    awaits_release = block_device;
    const char *from = block_device ? block_device : "null";
    const char *type = block_device ? "fuseblk" : "fuse";
    if (mount(from, dir, type, MS_NOSUID | MS_NODEV, options))
        die("cannot mount %s: %s; run as root", dir, strerror(errno));
}

static void shake_hands(void)
{
    char *in = malloc(BUFFER_BYTES);
    const struct fuse_in_header *header = (void *)in;
    if (!in || receive(device, in) == ENDED || header->opcode != FUSE_INIT)
        die("the kernel did not begin with INIT");
    struct {
        struct fuse_out_header header;
        struct fuse_init_out init;
    } reply = { .header = { .len = sizeof reply, .unique = header->unique } };
    negotiate((void *)(header + 1), &reply.init);
    if (write(device, &reply, sizeof reply) < 0)
        die("the kernel refused the reply to INIT: %s", strerror(errno));
    free(in);
}

static void print_counts(void)
{
    const char *before = "{";
    for (unsigned i = 0; i < OPCODES; i++) {
        if (counts[i] && operation_name(i)) {
            printf("%s\"%s\": %llu", before, operation_name(i), (unsigned long long)counts[i]);
            before = ", ";
        }
    }
    printf("%s}\n", *before == '{' ? "{" : "");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    unsigned threads = 8;
    bool blocking = false;
    const char *dir = NULL, *block_device = NULL;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--blocking"))
            blocking = true;
        else if (!strcmp(argv[i], "--threads") && i + 1 < argc)
            threads = (unsigned)strtoul(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--on-device") && i + 1 < argc)
            block_device = argv[++i];
        else if (*argv[i] != '-' && !dir)
            dir = argv[i];
        else
            dir = "";
    }
    if (!dir || !*dir || !threads) {
        fputs("usage: null [--threads N] [--blocking] [--on-device DEVICE] DIR\n", stderr);
        return 2;
    }
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);

    tree_init();
    mount_at(dir, block_device);
    shake_hands();
    start_threads(threads, blocking);
    int got;
    while (sigwait(&signals, &got) == 0 && got == SIGUSR1)
        print_counts();
    if (!ended)
        umount2(dir, MNT_DETACH);
    print_counts();
    return 0;
}
