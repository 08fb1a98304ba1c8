// serve.h - the requests of the null server.
#ifndef SERVE_H
#define SERVE_H
#include <linux/fuse.h>
#include <stddef.h>
#include <stdint.h>

// Longest content of one request, as EVFS negotiates it.
#define PIECE_BYTES (1u << 20)
#define BUFFER_BYTES (PIECE_BYTES + 4096)

enum { OPCODES = 64 };
// Number of requests of each kind so far.
extern _Atomic uint64_t counts[OPCODES];
// Returns the name of a kind, or NULL.
const char *operation_name(unsigned opcode);

// Fills in the reply to INIT.
void negotiate(const struct fuse_init_in *in, struct fuse_init_out *out);
// Serves a request. Returns the length of the reply in `out`, or 0 if none is expected.
size_t serve(char *request, char *out);
#endif
