/* A client of AFS-3 file servers on OpenAFS's own Rx library (Debian's libopenafs-dev), as it is: its window of 32 packets,
 * its socket buffer, its jumbograms. The peer of crates/afs-server/examples/load.rs; built by afs.sh.
 *
 *   afsc SERVER VOLUME COMMAND [-c CLIENTS] [-t THREADS] [-n TIMES] [-b BYTES] [-f VNODE.UNIQUE] [-a ADDRESS] [-x] [-k] [-l NAME]
 *
 *   make    makes the file NAME of BYTES in the root of the volume, prints its VNODE.UNIQUE
 *   fetch   reads the file VNODE.UNIQUE of BYTES, all clients the same
 *   store   writes a file of its own of BYTES, each client; made before, and stored once
 *   time, status, names     GetTime; FetchStatus of the root; CreateFile and RemoveFile of a name
 *   await   waits until the file VNODE.UNIQUE has BYTES
 *
 * Clients are processes with a socket each, at ADDRESS, ADDRESS + 1 and so on; each has one connection for its THREADS
 * (one to four). They get to know the server one after the other, then all begin at once; with -x they
 * begin as strangers. In the end they give up all that the server promised to tell them, so that no later run waits for
 * clients that are gone; with -k they end without a word. VOLUME is a number, which `volume` finds of a name. Prints one line of JSON: seconds of the slowest client and of
 * the average one, and the longest call.
 */
#include <afs/param.h>
#include <rx/rx.h>
#include <rx/rx_null.h>
#include <rx/rx_globals.h>
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What libafsrpc.a needs of libraries that the package leaves out. */
int
rk_socket(int domain, int type, int protocol)
{
    return socket(domain, type, protocol);
}

int
hc_RAND_bytes(void *buffer, size_t bytes)
{
    return getrandom(buffer, bytes, 0) == (ssize_t)bytes;
}

enum { FS_PORT = 7000, FS = 1, VL_PORT = 7003, VL = 52, CB = 1, PIECE = 65536, CLIENTS_MAX = 64 };
enum { FETCH_STATUS = 132, REMOVE_FILE = 136, CREATE_FILE = 137, GET_TIME = 153, GIVE_UP_ALL = 65539, FETCH_DATA = 65537, STORE_DATA = 65538 };
enum { ENTRY_BY_NAME = 519, ENTRY_NAME_BYTES = 65, ENTRY_ID = 105, TELL_ME = 65538 };
/* Words of parts of replies. */
enum { STATUS = 21, CALLBACK = 3, SYNC = 6, LENGTH = 3 };

static struct rx_securityClass *null_class[1];
static afs_uint32 server, volume, vnode = 1, uniq = 1, address;
static int clients = 1, threads = 1, times = 1, stranger, keep;
static long bytes = 1 << 20;
static const char *command, *name = "file";

static void
fail(const char *what, int code)
{
    fprintf(stderr, "afsc: %s: %d\n", what, code);
    exit(1);
}

static double
now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void
out(struct rx_call *call, int count, const afs_uint32 *words)
{
    for (; count; count--) {
	afs_uint32 word = htonl(*words++);
	rx_Write(call, (char *)&word, 4);
    }
}
#define SAY(call, ...) \
    do { const afs_uint32 w[] = { __VA_ARGS__ }; out(call, sizeof(w) / 4, w); } while (0)

/* Reads a reply that is all words, ends the call, and gives its outcome. */
static int
in(struct rx_call *call, int count, afs_uint32 *words)
{
    int i, got = rx_Read(call, (char *)words, count * 4), code = rx_EndCall(call, 0);
    for (i = 0; i < count; i++)
	words[i] = ntohl(words[i]);
    return code ? code : got == count * 4 ? 0 : -1;
}

static void
out_name(struct rx_call *call, const char *text)
{
    int length = strlen(text);
    char padded[256] = { 0 };
    strncpy(padded, text, sizeof(padded) - 1);
    SAY(call, length);
    rx_Write(call, padded, (length + 3) / 4 * 4);
}

/* What a file server asks its clients; all but who they are needs no more than an answer. */
static afs_int32
asked(struct rx_call *call)
{
    afs_uint32 opcode, words[1 + 11 + 96 + 2] = { 0 };
    int i;
    if (rx_Read(call, (char *)&opcode, 4) != 4)
	return -1;
    if (ntohl(opcode) != TELL_ME)
	return 0;
    words[0] = 1;
    words[1] = getpid();
    /* Sixteen bits, for which XDR has a word. */
    words[2] = (afs_uint32)(now() * 1e6) & 0xffff;
    words[12] = ntohl(address);
    for (i = 0; i < 2; i++)
	words[108 + i] = 1 - i;
    out(call, 110, words);
    return 0;
}

static struct rx_connection *
connect_to(int port, int service)
{
    return rx_NewConnection(server, htons(port), service, rxnull_NewClientSecurityObject(), 0);
}

static void
start_rx(afs_uint32 from)
{
    struct rx_service *service;
    if (rx_InitHost(from, 0) != 0)
	fail("rx_InitHost", 0);
    null_class[0] = rxnull_NewServerSecurityObject();
    service = rx_NewService(0, CB, "callback", null_class, 1, asked);
    rx_SetMaxProcs(service, 2);
    rx_StartServer(0);
}

static afs_uint32
volume_called(const char *text)
{
    afs_uint32 entry[ENTRY_ID + 8];
    struct rx_call *call = rx_NewCall(connect_to(VL_PORT, VL));
    int code;
    SAY(call, ENTRY_BY_NAME);
    out_name(call, text);
    if ((code = in(call, ENTRY_ID + 8, entry)) != 0)
	fail("volume", code);
    return entry[ENTRY_ID];
}

static int
get_time(struct rx_connection *to)
{
    afs_uint32 words[2];
    struct rx_call *call = rx_NewCall(to);
    SAY(call, GET_TIME);
    return in(call, 2, words);
}

static int
give_up_all(struct rx_connection *to)
{
    struct rx_call *call = rx_NewCall(to);
    SAY(call, GIVE_UP_ALL);
    return in(call, 0, NULL);
}

static int
status(struct rx_connection *to, afs_uint32 v, afs_uint32 u, afs_uint32 *words)
{
    struct rx_call *call = rx_NewCall(to);
    SAY(call, FETCH_STATUS, volume, v, u);
    return in(call, STATUS + CALLBACK + SYNC, words);
}

static int
create(struct rx_connection *to, const char *text, afs_uint32 *words)
{
    struct rx_call *call = rx_NewCall(to);
    SAY(call, CREATE_FILE, volume, 1, 1);
    out_name(call, text);
    SAY(call, 0, 0, 0, 0, 0, 0);
    return in(call, 3 + 2 * STATUS + CALLBACK + SYNC, words);
}

static int
remove_it(struct rx_connection *to, const char *text)
{
    afs_uint32 words[STATUS + SYNC];
    struct rx_call *call = rx_NewCall(to);
    SAY(call, REMOVE_FILE, volume, 1, 1);
    out_name(call, text);
    return in(call, STATUS + SYNC, words);
}

static int
fetch(struct rx_connection *to, afs_uint32 v, afs_uint32 u)
{
    char buffer[PIECE];
    afs_uint32 words[STATUS + CALLBACK + SYNC];
    long left = bytes;
    struct rx_call *call = rx_NewCall(to);
    SAY(call, FETCH_DATA, volume, v, u, 0, 0, 0, bytes);
    if (rx_Read(call, (char *)words, 8) != 8 || ntohl(words[1]) != bytes)
	return rx_EndCall(call, -1);
    while (left > 0) {
	int piece = left < PIECE ? left : PIECE;
	if (rx_Read(call, buffer, piece) != piece)
	    return rx_EndCall(call, -1);
	left -= piece;
    }
    return in(call, STATUS + CALLBACK + SYNC, words);
}

static int
store(struct rx_connection *to, afs_uint32 v, afs_uint32 u)
{
    static char data[PIECE];
    afs_uint32 words[STATUS + SYNC];
    long left = bytes;
    struct rx_call *call = rx_NewCall(to);
    SAY(call, STORE_DATA, volume, v, u, 0, 0, 0, 0, 0, 0, 0, 0, 0, bytes, 0, bytes);
    while (left > 0) {
	int piece = left < PIECE ? left : PIECE;
	if (rx_Write(call, data, piece) != piece)
	    break;
	left -= piece;
    }
    return in(call, STATUS + SYNC, words);
}

struct caller {
    struct rx_connection *to;
    char name[64];
    afs_uint32 vnode, unique;
    double longest;
};

static int
once(struct caller *caller)
{
    afs_uint32 words[3 + 2 * STATUS + CALLBACK + SYNC];
    switch (command[0] << 8 | command[1]) {
    case 't' << 8 | 'i': return get_time(caller->to);
    case 's' << 8 | 't':
	return command[2] == 'a' ? status(caller->to, 1, 1, words) : store(caller->to, caller->vnode, caller->unique);
    case 'f' << 8 | 'e': return fetch(caller->to, vnode, uniq);
    case 'n' << 8 | 'a': {
	int code = create(caller->to, caller->name, words);
	return code ? code : remove_it(caller->to, caller->name);
    }
    }
    fail(command, -1);
    return -1;
}

static void *
repeat(void *arg)
{
    struct caller *caller = arg;
    int i;
    for (i = 0; i < times; i++) {
	double begun = now();
	int code = once(caller);
	if (code)
	    fail(command, code);
	if (now() - begun > caller->longest)
	    caller->longest = now() - begun;
    }
    return NULL;
}

/* What the processes share: whose turn it is to get to know the server, who is ready, and the results. */
struct shared {
    pthread_barrier_t ready;
    volatile int turn;
    double took[CLIENTS_MAX], longest[CLIENTS_MAX];
};

static void
client(struct shared *shared, int n)
{
    pthread_t thread[4];
    struct caller caller[4];
    struct rx_connection *to;
    afs_uint32 words[3 + 2 * STATUS + CALLBACK + SYNC];
    int i, code;
    start_rx(address ? htonl(ntohl(address) + n) : htonl(INADDR_ANY));
    to = connect_to(FS_PORT, FS);
    for (i = 0; i < threads; i++) {
	caller[i].to = to;
	caller[i].longest = 0;
	snprintf(caller[i].name, sizeof(caller[i].name), "c%d-%d-%d", getpid(), n, i);
    }
    while (shared->turn != n)
	usleep(1000);
    if (!stranger && (code = status(to, 1, 1, words)) != 0)
	fail("status", code);
    for (i = 0; !strcmp(command, "store") && i < threads; i++) {
	if ((code = create(to, caller[i].name, words)) != 0)
	    fail("create", code);
	caller[i].vnode = words[1];
	caller[i].unique = words[2];
	if ((code = store(to, caller[i].vnode, caller[i].unique)) != 0)
	    fail("store", code);
    }
    shared->turn = n + 1;
    pthread_barrier_wait(&shared->ready);
    shared->took[n] = now();
    for (i = 0; i < threads; i++)
	pthread_create(&thread[i], NULL, repeat, &caller[i]);
    for (i = 0; i < threads; i++) {
	pthread_join(thread[i], NULL);
	if (caller[i].longest > shared->longest[n])
	    shared->longest[n] = caller[i].longest;
    }
    shared->took[n] = now() - shared->took[n];
    pthread_barrier_wait(&shared->ready);
    for (i = 0; !strcmp(command, "store") && i < threads; i++)
	remove_it(to, caller[i].name);
    if (!keep && (code = give_up_all(to)) != 0)
	fail("give up all", code);
    rx_Finalize();
    _exit(0);
}

static void
together(void)
{
    struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attr;
    double slowest = 0, sum = 0, longest = 0;
    int n, failed = 0, outcome;
    pid_t child[CLIENTS_MAX];
    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->ready, &attr, clients);
    for (n = 0; n < clients; n++)
	if ((child[n] = fork()) == 0)
	    client(shared, n);
    /* A client that fails leaves the others at the barrier. */
    for (n = 0; n < clients && !failed; n++)
	failed = wait(&outcome) < 0 || outcome != 0;
    if (failed) {
	for (n = 0; n < clients; n++)
	    kill(child[n], SIGKILL);
	exit(1);
    }
    for (n = 0; n < clients; n++) {
	sum += shared->took[n];
	slowest = shared->took[n] > slowest ? shared->took[n] : slowest;
	longest = shared->longest[n] > longest ? shared->longest[n] : longest;
    }
    printf("{\"seconds\":%.5f,\"average\":%.5f,\"longest\":%.5f}\n", slowest, sum / clients, longest);
}

int
main(int argc, char **argv)
{
    afs_uint32 words[3 + 2 * STATUS + CALLBACK + SYNC];
    int option, code;
    if (argc < 4)
	fail("see the head of the source", argc);
    server = inet_addr(argv[1]);
    command = argv[3];
    optind = 4;
    while ((option = getopt(argc, argv, "c:t:n:b:f:a:xkl:")) != -1)
	switch (option) {
	case 'c': clients = atoi(optarg); break;
	case 't': threads = atoi(optarg); break;
	case 'n': times = atoi(optarg); break;
	case 'b': bytes = atol(optarg); break;
	case 'f': if (sscanf(optarg, "%u.%u", &vnode, &uniq) != 2) fail("-f", 0); break;
	case 'a': address = inet_addr(optarg); break;
	case 'x': stranger = 1; break;
	case 'k': keep = 1; break;
	case 'l': name = optarg; break;
	default: exit(2);
	}
    if (clients < 1 || clients > CLIENTS_MAX || threads < 1 || threads > 4)
	fail("clients or threads", clients);
    volume = atoi(argv[2]);
    if (volume) {
	/* A number: the parent of several clients must have no threads of Rx. */
	if (strcmp(command, "make") && strcmp(command, "await")) {
	    together();
	    return 0;
	}
	start_rx(htonl(INADDR_ANY));
    } else {
	start_rx(htonl(INADDR_ANY));
	volume = volume_called(argv[2]);
    }
    if (!strcmp(command, "volume")) {
	printf("%u\n", volume);
    } else if (!strcmp(command, "make")) {
	struct rx_connection *to = connect_to(FS_PORT, FS);
	if ((code = create(to, name, words)) != 0 || (bytes && (code = store(to, words[1], words[2])) != 0))
	    fail("make", code);
	if ((code = give_up_all(to)) != 0)
	    fail("give up all", code);
	printf("%u.%u\n", words[1], words[2]);
    } else {
	struct rx_connection *to = connect_to(FS_PORT, FS);
	do {
	    usleep(2000);
	    if ((code = status(to, vnode, uniq, words)) != 0)
		fail("status", code);
	} while (words[LENGTH] != bytes);
	if ((code = give_up_all(to)) != 0)
	    fail("give up all", code);
    }
    fflush(stdout);
    rx_Finalize();
    _exit(0);
}
