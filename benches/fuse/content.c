// content.c - requests for attributes and for the content of files.
#define _GNU_SOURCE
#include "request.h"
#include <errno.h>
#include <linux/falloc.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define BLOCK_BYTES 4096
#define FILE_MAX (8ull << 30) // bytes, as files lie in memory with their holes
#define VOLUME_BLOCKS (1u << 24)

// STATX of the protocol 7.39.
struct statx_time {
    int64_t seconds;
    uint32_t nanos;
    int32_t reserved;
};
struct statx_out {
    uint64_t valid;
    uint32_t valid_nanos, flags;
    uint64_t spare[2];
    uint32_t mask, blksize;
    uint64_t attributes;
    uint32_t nlink, uid, gid;
    uint16_t mode, spare0;
    uint64_t ino, size, blocks, attributes_mask;
    struct statx_time atime, btime, ctime, mtime;
    uint32_t rdev_major, rdev_minor, dev_major, dev_minor;
    uint64_t spare2[14];
};

// ---- attributes

void fill_attr(const struct node *n, struct fuse_attr *a)
{
    memset(a, 0, sizeof *a);
    a->ino = n->ino;
    a->size = n->size;
    a->blocks = (n->size + 511) / 512;
    a->atime = (uint64_t)n->atime.tv_sec;
    a->mtime = (uint64_t)n->mtime.tv_sec;
    a->ctime = (uint64_t)n->ctime.tv_sec;
    a->atimensec = (uint32_t)n->atime.tv_nsec;
    a->mtimensec = (uint32_t)n->mtime.tv_nsec;
    a->ctimensec = (uint32_t)n->ctime.tv_nsec;
    a->mode = n->mode;
    a->nlink = n->links;
    a->uid = n->uid;
    a->gid = n->gid;
    a->rdev = n->rdev;
    a->blksize = BLOCK_BYTES;
}

int do_getattr(struct request *r)
{
    struct fuse_attr_out *out = (void *)r->out;
    memset(out, 0, sizeof *out);
    out->attr_valid = TTL;
    fill_attr(r->node, &out->attr);
    return sizeof *out;
}

static struct statx_time statx_time(struct timespec t)
{
    return (struct statx_time){ .seconds = t.tv_sec, .nanos = (uint32_t)t.tv_nsec };
}

int do_statx(struct request *r)
{
    const struct node *n = r->node;
    struct statx_out *out = (void *)r->out;
    *out = (struct statx_out){
        .valid = TTL,
        .mask = STATX_BASIC_STATS | STATX_BTIME,
        .blksize = BLOCK_BYTES,
        .nlink = n->links,
        .uid = n->uid,
        .gid = n->gid,
        .mode = (uint16_t)n->mode,
        .ino = n->ino,
        .size = n->size,
        .blocks = (n->size + 511) / 512,
        .atime = statx_time(n->atime),
        .btime = statx_time(n->btime),
        .ctime = statx_time(n->ctime),
        .mtime = statx_time(n->mtime),
        .rdev_major = n->rdev >> 8 & 0xfff,
        .rdev_minor = (n->rdev & 0xff) | (n->rdev >> 12 & 0xfff00),
    };
    return sizeof *out;
}

int do_setattr(struct request *r)
{
    const struct fuse_setattr_in *in = (void *)r->arg;
    const uint32_t owner = FATTR_UID | FATTR_GID, v = in->valid;
    const uint32_t sets = owner | FATTR_MODE | FATTR_SIZE | FATTR_ATIME | FATTR_MTIME;
    struct node *n = r->node;
    struct timespec now = tree_now();
    if (v & FATTR_SIZE && in->size > FILE_MAX)
        return -EFBIG;
    // The kernel leaves the loss of privileges to the server (FUSE_HANDLE_KILLPRIV_V2). A request
    // that sets nothing asks for it.
    bool cut_by_user = v & FATTR_SIZE && r->header->uid;
    if (!(v & sets) || v & owner || cut_by_user)
        node_drop_set_ids(n);
    if (v & (owner | FATTR_SIZE) && n->xattrs) {
        struct xattr **capability = xattr_find(n, "security.capability");
        if (*capability)
            xattr_remove(capability);
    }
    if (v & FATTR_MODE)
        n->mode = (n->mode & S_IFMT) | (in->mode & 07777);
    if (v & FATTR_UID)
        n->uid = in->uid;
    if (v & FATTR_GID)
        n->gid = in->gid;
    if (v & FATTR_SIZE) {
        node_resize(n, in->size);
        n->mtime = now;
    }
    if (v & FATTR_ATIME)
        n->atime = (struct timespec){ (time_t)in->atime, in->atimensec };
    if (v & FATTR_ATIME_NOW)
        n->atime = now;
    if (v & FATTR_MTIME)
        n->mtime = (struct timespec){ (time_t)in->mtime, in->mtimensec };
    if (v & FATTR_MTIME_NOW)
        n->mtime = now;
    n->ctime = now;
    return do_getattr(r);
}

int do_statfs(struct request *r)
{
    struct fuse_statfs_out *out = (void *)r->out;
    memset(out, 0, sizeof *out);
    out->st.bsize = out->st.frsize = BLOCK_BYTES;
    out->st.blocks = out->st.bfree = out->st.bavail = VOLUME_BLOCKS;
    out->st.files = out->st.ffree = VOLUME_BLOCKS;
    out->st.namelen = 255;
    return sizeof *out;
}

// ---- content

int do_open(struct request *r)
{
    struct fuse_open_out *out = (void *)r->out;
    memset(out, 0, sizeof *out);
    out->open_flags = FOPEN_KEEP_CACHE;
    r->node->opens++;
    return sizeof *out;
}

int do_release(struct request *r)
{
    r->node->opens--;
    node_put(r->node);
    return 0;
}

int do_read(struct request *r)
{
    const struct fuse_read_in *in = (void *)r->arg;
    const struct node *n = r->node;
    uint64_t len = in->offset < n->size ? n->size - in->offset : 0;
    if (len > in->size)
        len = in->size;
    if (len > PIECE_BYTES)
        len = PIECE_BYTES;
    if (len)
        memcpy(r->out, n->data + in->offset, len);
    return (int)len;
}

int do_write(struct request *r)
{
    const struct fuse_write_in *in = (void *)r->arg;
    struct node *n = r->node;
    uint64_t end = in->offset + in->size;
    if (end < in->offset || end > FILE_MAX)
        return -EFBIG;
    if (in->write_flags & FUSE_WRITE_KILL_SUIDGID)
        node_drop_set_ids(n);
    if (end > n->size)
        node_resize(n, end);
    memcpy(n->data + in->offset, in + 1, in->size);
    n->mtime = n->ctime = tree_now();
    struct fuse_write_out *out = (void *)r->out;
    *out = (struct fuse_write_out){ .size = in->size };
    return sizeof *out;
}

int do_fallocate(struct request *r)
{
    const struct fuse_fallocate_in *in = (void *)r->arg;
    struct node *n = r->node;
    uint64_t end = in->offset + in->length;
    bool zeroes = in->mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE);
    if (in->mode & ~(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
        return -EOPNOTSUPP;
    if (end < in->offset || end > FILE_MAX)
        return -EFBIG;
    if (r->header->uid)
        node_drop_set_ids(n);
    if (zeroes)
        node_zero(n, in->offset, end);
    if (end > n->size && !(in->mode & FALLOC_FL_KEEP_SIZE))
        node_resize(n, end);
    n->mtime = n->ctime = tree_now();
    return 0;
}

// A file is data up to its end.
int do_lseek(struct request *r)
{
    const struct fuse_lseek_in *in = (void *)r->arg;
    if (in->whence != SEEK_DATA && in->whence != SEEK_HOLE)
        return -EINVAL;
    if (in->offset >= r->node->size)
        return -ENXIO;
    struct fuse_lseek_out *out = (void *)r->out;
    out->offset = in->whence == SEEK_DATA ? in->offset : r->node->size;
    return sizeof *out;
}

// ---- extended attributes

static int value_reply(struct request *r, uint32_t room, const char *value, uint32_t size)
{
    if (!room) {
        struct fuse_getxattr_out *out = (void *)r->out;
        *out = (struct fuse_getxattr_out){ .size = size };
        return sizeof *out;
    }
    if (size > room)
        return -ERANGE;
    memcpy(r->out, value, size);
    return (int)size;
}

int do_getxattr(struct request *r)
{
    const struct fuse_getxattr_in *in = (void *)r->arg;
    const char *name = (const char *)(in + 1);
    const struct xattr *x = *xattr_find(r->node, name);
    if (!x) // as EVFS answers
        return strcmp(name, "security.selinux") ? -ENODATA : -EOPNOTSUPP;
    return value_reply(r, in->size, x->value, x->size);
}

int do_listxattr(struct request *r)
{
    const struct fuse_getxattr_in *in = (void *)r->arg;
    static char all[XATTR_LIST_MAX]; // under the lock of all files
    uint32_t size = 0;
    for (const struct xattr *x = r->node->xattrs; x; x = x->next) {
        uint32_t len = (uint32_t)strlen(x->name) + 1;
        if (size + len > sizeof all)
            return -E2BIG;
        memcpy(all + size, x->name, len);
        size += len;
    }
    return value_reply(r, in->size, all, size);
}

int do_setxattr(struct request *r)
{
    const struct fuse_setxattr_in *in = (void *)r->arg;
    const char *name = r->arg + FUSE_COMPAT_SETXATTR_IN_SIZE;
    bool exists = *xattr_find(r->node, name) != NULL;
    if (exists && in->flags == XATTR_CREATE)
        return -EEXIST;
    if (!exists && in->flags == XATTR_REPLACE)
        return -ENODATA;
    xattr_set(r->node, name, name + strlen(name) + 1, in->size);
    r->node->ctime = tree_now();
    return 0;
}

int do_removexattr(struct request *r)
{
    struct xattr **at = xattr_find(r->node, r->arg);
    if (!*at)
        return -ENODATA;
    xattr_remove(at);
    r->node->ctime = tree_now();
    return 0;
}
