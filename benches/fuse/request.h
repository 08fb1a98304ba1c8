// request.h - shared by the handlers of requests.
#ifndef REQUEST_H
#define REQUEST_H
#include "serve.h"
#include "tree.h"
#include <limits.h>

#define TTL 3600 // seconds for which the kernel caches names, their absence, and attributes

struct request {
    const struct fuse_in_header *header;
    struct node *node;
    char *arg; // fixed arguments, then names or data
    char *out; // body of the reply
};

// A handler returns the length of the body, a negative error number, or this.
#define NO_REPLY INT_MIN
typedef int handler(struct request *);

handler do_lookup, do_forget, do_batch_forget, do_symlink, do_readlink, do_mknod, do_mkdir,
    do_create, do_tmpfile, do_unlink, do_rmdir, do_link, do_rename, do_rename2, do_readdir,
    do_readdirplus;
handler do_getattr, do_statx, do_setattr, do_read, do_write, do_release, do_fallocate, do_lseek,
    do_open, do_statfs, do_getxattr, do_listxattr, do_setxattr, do_removexattr;

struct node *node_of(uint64_t id);
void fill_attr(const struct node *n, struct fuse_attr *a);
#endif
