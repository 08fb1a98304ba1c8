/* The protocol of OpenAFS's rxperf on OpenAFS's own Rx library (Debian's libopenafs-dev), which Debian does not
 * package: the peer of crates/rx/examples/rxperf.rs, with the same words on the wire and the same output.
 *
 *   rxc server PORT [JUMBO] [UDPSIZE] [PROCS]
 *   rxc recv|send|rpc HOST PORT BYTES TIMES THREADS [JUMBO] [UDPSIZE]
 *
 * JUMBO 0 turns jumbograms off (the default of the OpenAFS servers), 1 on. UDPSIZE is the socket buffer, 65536
 * unless told otherwise. Built by rx.sh.
 */
#include <afs/param.h>
#include <rx/rx.h>
#include <rx/rx_null.h>
#include <rx/rx_globals.h>
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>

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

enum { SERVICE = 147, VERSION = 3, COOKIE = 0x4711, SEND = 0, RECV = 1, RPC = 3, PIECE = 65536 };

static char somebuf[PIECE];
static struct rx_securityClass *null_class[1];

static int
word_in(struct rx_call *call, int *value)
{
    int word;
    if (rx_Read(call, (char *)&word, 4) != 4)
	return -1;
    *value = ntohl(word);
    return 0;
}

static int
word_out(struct rx_call *call, int value)
{
    int word = htonl(value);
    return rx_Write(call, (char *)&word, 4) == 4 ? 0 : -1;
}

static int
take(struct rx_call *call, int bytes)
{
    char buffer[PIECE];
    while (bytes > 0) {
	int piece = bytes < PIECE ? bytes : PIECE;
	if (rx_Read(call, buffer, piece) != piece)
	    return -1;
	bytes -= piece;
    }
    return 0;
}

static int
give(struct rx_call *call, int bytes)
{
    while (bytes > 0) {
	int piece = bytes < PIECE ? bytes : PIECE;
	if (rx_Write(call, somebuf, piece) != piece)
	    return -1;
	bytes -= piece;
    }
    return 0;
}

static afs_int32
serve(struct rx_call *call)
{
    int version, command, size, bytes, gives = 0, takes = 0;
    if (word_in(call, &version) || word_in(call, &command) || word_in(call, &size)
	|| word_in(call, &size) || word_in(call, &bytes) || version != VERSION)
	return -1;
    if (command == SEND)
	takes = bytes;
    else if (command == RECV)
	gives = bytes;
    else if (command == RPC) {
	takes = bytes;
	if (word_in(call, &gives))
	    return -1;
    } else
	return -2;
    if (take(call, takes) || give(call, gives) || word_out(call, COOKIE))
	return -1;
    return 0;
}

struct work {
    struct rx_connection *connection;
    int command, bytes, times;
};

static void *
repeat(void *arg)
{
    struct work *work = arg;
    int i, cookie;
    for (i = 0; i < work->times; i++) {
	struct rx_call *call = rx_NewCall(work->connection);
	int failed = word_out(call, VERSION) || word_out(call, work->command) || word_out(call, PIECE)
	    || word_out(call, PIECE) || word_out(call, work->bytes)
	    || (work->command == RPC && word_out(call, work->bytes))
	    || (work->command != RECV && give(call, work->bytes))
	    || (work->command != SEND && take(call, work->bytes)) || word_in(call, &cookie)
	    || cookie != COOKIE;
	int code = rx_EndCall(call, 0);
	if (failed || code) {
	    fprintf(stderr, "call %d: %d\n", i, code);
	    exit(1);
	}
    }
    return NULL;
}

static double
seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void
setup(int port, int jumbo, int udpsize)
{
    rx_SetUdpBufSize(udpsize);
    rx_extraPackets = 2000;
    if (rx_Init(htons(port)) != 0) {
	fprintf(stderr, "rx_Init\n");
	exit(1);
    }
    if (!jumbo)
	rx_SetNoJumbo();
}

int
main(int argc, char **argv)
{
#define ARG(n, other) (argc > (n) ? atoi(argv[n]) : (other))
    if (argc > 2 && !strcmp(argv[1], "server")) {
	struct rx_service *service;
	setup(atoi(argv[2]), ARG(3, 0), ARG(4, 65536));
	null_class[0] = rxnull_NewServerSecurityObject();
	service = rx_NewService(0, SERVICE, "rxperf", null_class, 1, serve);
	rx_SetMinProcs(service, 2);
	rx_SetMaxProcs(service, ARG(5, 64));
	rx_SetCheckReach(service, 1);
	printf("listening\n");
	fflush(stdout);
	rx_StartServer(1);
	abort();
    }
    if (argc > 6) {
	int bytes = atoi(argv[4]), times = atoi(argv[5]), threads = atoi(argv[6]), i;
	int command = !strcmp(argv[1], "send") ? SEND : !strcmp(argv[1], "recv") ? RECV : RPC;
	pthread_t *thread = calloc(threads, sizeof(*thread));
	struct work *work = calloc(threads, sizeof(*work));
	double start, before;
	setup(0, ARG(7, 1), ARG(8, 65536));
	start = seconds(CLOCK_MONOTONIC);
	before = seconds(CLOCK_PROCESS_CPUTIME_ID);
	for (i = 0; i < threads; i++) {
	    work[i].connection = i % 4 ? work[i - 1].connection
		: rx_NewConnection(inet_addr(argv[2]), htons(atoi(argv[3])), SERVICE,
				   rxnull_NewClientSecurityObject(), 0);
	    work[i].command = command;
	    work[i].bytes = bytes;
	    work[i].times = times;
	    pthread_create(&thread[i], NULL, repeat, &work[i]);
	}
	for (i = 0; i < threads; i++)
	    pthread_join(thread[i], NULL);
	start = seconds(CLOCK_MONOTONIC) - start;
	before = seconds(CLOCK_PROCESS_CPUTIME_ID) - before;
	printf("{\"seconds\":%.3f,\"mb_s\":%.1f,\"calls_s\":%.0f,\"cpu_s\":%.3f}\n", start,
	       (command == RPC ? 2.0 : 1.0) * bytes * times * threads / start / 1e6,
	       times * (double)threads / start, before);
	return 0;
    }
    fprintf(stderr, "see the head of the source\n");
    return 1;
}
