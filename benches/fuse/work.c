// work.c - small operations of clients on a mounted directory.
//
//   work ROW COUNT CLIENTS
//
// It works in the working directory, and prints seconds, and CPU seconds of the clients. ROW is one
// of those below. COUNT is the number of operations of each of CLIENTS processes, which begin at
// the same time, each in a directory of its own. `prepare` makes the directories and files that the
// rows use.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FILE_BYTES 65536
#define PIECE 4096

static char buffer[FILE_BYTES] __attribute__((aligned(PIECE)));

static void die(const char *what)
{
    fprintf(stderr, "work: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int file_of(const char *name, int flags)
{
    int fd = open(name, flags, 0644);
    if (fd < 0)
        die(name);
    return fd;
}

static void name_of(char name[32], int i)
{
    snprintf(name, 32, "x%d", i);
}

static void create(int count, const char *data, int and_unlink)
{
    char name[32];
    for (int i = 0; i < count; i++) {
        name_of(name, i);
        int fd = file_of(name, O_CREAT | O_EXCL | O_WRONLY);
        if (data && write(fd, data, PIECE) != PIECE)
            die("write");
        close(fd);
        if (and_unlink && unlink(name))
            die("unlink");
    }
}

static void read_pieces(int count, int flags)
{
    int fd = file_of("file", O_RDONLY | flags);
    for (int i = 0; i < count; i++)
        if (pread(fd, buffer, PIECE, i * PIECE % FILE_BYTES) != PIECE)
            die("read");
    close(fd);
}

// Without its pages in the kernel's cache and without read-ahead, each read asks the server.
static void read_again(int count)
{
    int fd = file_of("file", O_RDONLY);
    if ((errno = posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM)))
        die("posix_fadvise");
    for (int i = 0; i < count; i++) {
        off_t at = i * PIECE % FILE_BYTES;
        if (!at && (errno = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED)))
            die("posix_fadvise");
        if (pread(fd, buffer, PIECE, at) != PIECE)
            die("read");
    }
    close(fd);
}

static void prepare(int count)
{
    (void)count;
    int fd = file_of("file", O_CREAT | O_RDWR);
    if (pwrite(fd, buffer, FILE_BYTES, 0) != FILE_BYTES)
        die("write");
    close(fd);
}

static void create_unlink(int count) { create(count, NULL, 1); }
static void create_write_unlink(int count) { create(count, buffer, 1); }
static void create_only(int count) { create(count, NULL, 0); }
static void read_direct(int count) { read_pieces(count, O_DIRECT); }
static void read_cached(int count) { read_pieces(count, 0); }

// The kernel asks the server each time.
static void stat_again(int count)
{
    struct statx to;
    int fd = file_of("file", O_RDONLY);
    for (int i = 0; i < count; i++)
        if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &to))
            die("statx");
    close(fd);
}

static const struct {
    const char *name;
    void (*run)(int count);
} rows[] = {
    { "prepare", prepare },
    { "create-unlink", create_unlink },
    { "create-write-unlink", create_write_unlink },
    { "create", create_only },
    { "stat", stat_again },
    { "read", read_again },
    { "read-direct", read_direct },
    { "read-cached", read_cached },
};

struct shared {
    _Atomic int ready, go;
    double cpu[];
};

static void client(int number, void (*run)(int), int count, struct shared *shared)
{
    char dir[32];
    snprintf(dir, sizeof dir, "client%d", number);
    if ((mkdir(dir, 0755) && errno != EEXIST) || chdir(dir))
        die(dir);
    shared->ready++;
    while (!shared->go)
        usleep(100);
    double before = seconds(CLOCK_PROCESS_CPUTIME_ID);
    run(count);
    shared->cpu[number] = seconds(CLOCK_PROCESS_CPUTIME_ID) - before;
    exit(0);
}

int main(int argc, char **argv)
{
    void (*run)(int) = NULL;
    for (size_t i = 0; argc == 4 && i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(argv[1], rows[i].name))
            run = rows[i].run;
    if (!run) {
        fputs("usage: work ROW COUNT CLIENTS\n", stderr);
        return 2;
    }
    int count = atoi(argv[2]), clients = atoi(argv[3]);
    size_t size = sizeof(struct shared) + (size_t)clients * sizeof(double);
    int access = PROT_READ | PROT_WRITE, kind = MAP_SHARED | MAP_ANONYMOUS;
    struct shared *shared = mmap(NULL, size, access, kind, -1, 0);
    if (shared == MAP_FAILED)
        die("mmap");
    for (int i = 0; i < clients; i++) {
        pid_t pid = fork();
        if (pid < 0)
            die("fork");
        if (!pid)
            client(i, run, count, shared);
    }
    int status;
    while (shared->ready < clients) {
        if (waitpid(-1, &status, WNOHANG) > 0)
            return 1;
        usleep(100);
    }
    double began = seconds(CLOCK_MONOTONIC);
    shared->go = 1;
    int failed = 0;
    while (wait(&status) > 0)
        failed |= status;
    double took = seconds(CLOCK_MONOTONIC) - began, cpu = 0;
    for (int i = 0; i < clients; i++)
        cpu += shared->cpu[i];
    printf("%.9f %.9f\n", took, cpu);
    return failed ? 1 : 0;
}
