// serve.c - dispatch of the null server's requests.
//
// One lock protects all files: no request does more than copy its data. INIT flags, time limits,
// and the answers that change the kernel's further requests are those of EVFS
// (crates/export-fuse/src/tree/ops.rs).
#define _GNU_SOURCE
#include "request.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>

#define MINOR 45 // of the protocol: the newest that EVFS knows, whatever the header's
#define BACKGROUND 64

_Atomic uint64_t counts[OPCODES];
static pthread_mutex_t files = PTHREAD_MUTEX_INITIALIZER;

struct node *node_of(uint64_t id)
{
    return id == FUSE_ROOT_ID ? &root : (struct node *)(uintptr_t)id;
}

void negotiate(const struct fuse_init_in *in, struct fuse_init_out *out)
{
    const uint32_t wanted = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_ASYNC_DIO | FUSE_MAX_PAGES
        | FUSE_PARALLEL_DIROPS | FUSE_DONT_MASK | FUSE_POSIX_ACL | FUSE_DO_READDIRPLUS
        | FUSE_READDIRPLUS_AUTO | FUSE_CACHE_SYMLINKS | FUSE_HANDLE_KILLPRIV_V2
        | FUSE_NO_OPENDIR_SUPPORT | FUSE_INIT_EXT;
    memset(out, 0, sizeof *out);
    out->major = FUSE_KERNEL_VERSION;
    out->minor = in->minor < MINOR ? in->minor : MINOR;
    out->max_readahead = in->max_readahead < PIECE_BYTES ? in->max_readahead : PIECE_BYTES;
    out->flags = in->flags & wanted;
    out->max_background = BACKGROUND;
    out->congestion_threshold = BACKGROUND / 4 * 3;
    out->max_write = PIECE_BYTES;
    out->time_gran = 1;
    out->max_pages = PIECE_BYTES / 4096;
}

static int done(struct request *r)
{
    (void)r;
    return 0;
}

// Answer after which the kernel sends no further request of this kind.
static int unknown(struct request *r)
{
    (void)r;
    return -ENOSYS;
}

static int no_ioctl(struct request *r)
{
    (void)r;
    return -ENOTTY;
}

// Requests that the header may not know have their numbers. EVFS too answers FLUSH and OPENDIR with
// ENOSYS.
static const struct {
    const char *name;
    handler *handler;
} operations[OPCODES] = {
    [FUSE_LOOKUP] = { "LOOKUP", do_lookup },
    [FUSE_FORGET] = { "FORGET", do_forget },
    [FUSE_GETATTR] = { "GETATTR", do_getattr },
    [FUSE_SETATTR] = { "SETATTR", do_setattr },
    [FUSE_READLINK] = { "READLINK", do_readlink },
    [FUSE_SYMLINK] = { "SYMLINK", do_symlink },
    [FUSE_MKNOD] = { "MKNOD", do_mknod },
    [FUSE_MKDIR] = { "MKDIR", do_mkdir },
    [FUSE_UNLINK] = { "UNLINK", do_unlink },
    [FUSE_RMDIR] = { "RMDIR", do_rmdir },
    [FUSE_RENAME] = { "RENAME", do_rename },
    [FUSE_LINK] = { "LINK", do_link },
    [FUSE_OPEN] = { "OPEN", do_open },
    [FUSE_READ] = { "READ", do_read },
    [FUSE_WRITE] = { "WRITE", do_write },
    [FUSE_STATFS] = { "STATFS", do_statfs },
    [FUSE_RELEASE] = { "RELEASE", do_release },
    [FUSE_FSYNC] = { "FSYNC", done },
    [FUSE_SETXATTR] = { "SETXATTR", do_setxattr },
    [FUSE_GETXATTR] = { "GETXATTR", do_getxattr },
    [FUSE_LISTXATTR] = { "LISTXATTR", do_listxattr },
    [FUSE_REMOVEXATTR] = { "REMOVEXATTR", do_removexattr },
    [FUSE_FLUSH] = { "FLUSH", unknown },
    [FUSE_OPENDIR] = { "OPENDIR", unknown },
    [FUSE_READDIR] = { "READDIR", do_readdir },
    [FUSE_FSYNCDIR] = { "FSYNCDIR", done },
    [FUSE_CREATE] = { "CREATE", do_create },
    [FUSE_INTERRUPT] = { "INTERRUPT", unknown },
    [FUSE_DESTROY] = { "DESTROY", done },
    [FUSE_IOCTL] = { "IOCTL", no_ioctl },
    [FUSE_BATCH_FORGET] = { "BATCH_FORGET", do_batch_forget },
    [FUSE_FALLOCATE] = { "FALLOCATE", do_fallocate },
    [FUSE_READDIRPLUS] = { "READDIRPLUS", do_readdirplus },
    [FUSE_RENAME2] = { "RENAME2", do_rename2 },
    [FUSE_LSEEK] = { "LSEEK", do_lseek },
    [50] = { "SYNCFS", done },
    [51] = { "TMPFILE", do_tmpfile },
    [52] = { "STATX", do_statx },
};

const char *operation_name(unsigned opcode)
{
    return opcode < OPCODES ? operations[opcode].name : NULL;
}

size_t serve(char *bytes, char *out)
{
    const struct fuse_in_header *header = (void *)bytes;
    struct fuse_out_header *reply = (void *)out;
    handler *handle = unknown;
    if (header->opcode < OPCODES) {
        counts[header->opcode]++;
        if (operations[header->opcode].handler)
            handle = operations[header->opcode].handler;
    }
    struct request r = {
        .header = header,
        .node = node_of(header->nodeid),
        .arg = bytes + sizeof *header,
        .out = out + sizeof *reply,
    };
    pthread_mutex_lock(&files);
    int result = handle(&r);
    pthread_mutex_unlock(&files);
    if (result == NO_REPLY)
        return 0;
    reply->unique = header->unique;
    reply->error = result < 0 ? result : 0;
    reply->len = (uint32_t)(sizeof *reply + (size_t)(result > 0 ? result : 0));
    return reply->len;
}
