// names.c - requests for names and directories.
#define _GNU_SOURCE
#include "request.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static void fill_entry(struct fuse_entry_out *out, struct node *n)
{
    memset(out, 0, sizeof *out);
    out->nodeid = n == &root ? FUSE_ROOT_ID : (uintptr_t)n;
    out->entry_valid = out->attr_valid = TTL;
    fill_attr(n, &out->attr);
    n->lookups++;
}

static int entry_reply(struct request *r, struct node *n)
{
    fill_entry((void *)r->out, n);
    return sizeof(struct fuse_entry_out);
}

// Replies with a new file that is open.
static int create_reply(struct request *r, struct node *n)
{
    struct request open = *r;
    open.node = n;
    open.out += entry_reply(r, n);
    return sizeof(struct fuse_entry_out) + do_open(&open);
}

int do_lookup(struct request *r)
{
    struct name *e = name_find(r->node, r->arg);
    if (e)
        return entry_reply(r, e->node);
    struct fuse_entry_out *out = (void *)r->out;
    memset(out, 0, sizeof *out);
    out->entry_valid = TTL;
    return sizeof *out;
}

static void forget(struct node *n, uint64_t lookups)
{
    n->lookups -= lookups;
    node_put(n);
}

int do_forget(struct request *r)
{
    forget(r->node, ((struct fuse_forget_in *)r->arg)->nlookup);
    return NO_REPLY;
}

int do_batch_forget(struct request *r)
{
    struct fuse_batch_forget_in *in = (void *)r->arg;
    struct fuse_forget_one *one = (void *)(in + 1);
    for (uint32_t i = 0; i < in->count; i++)
        forget(node_of(one[i].nodeid), one[i].nlookup);
    return NO_REPLY;
}

// Adds a new node under a name. Returns NULL if the name exists.
static struct node *make(struct request *r, const char *text, uint32_t mode)
{
    if (name_find(r->node, text))
        return NULL;
    struct node *n = node_new(mode, r->header->uid, r->header->gid, r->node);
    name_add(r->node, text, n);
    return n;
}

int do_symlink(struct request *r)
{
    const char *target = r->arg + strlen(r->arg) + 1;
    struct node *n = make(r, r->arg, S_IFLNK | 0777);
    if (!n)
        return -EEXIST;
    n->data = strdup(target);
    n->size = strlen(target);
    return entry_reply(r, n);
}

int do_readlink(struct request *r)
{
    memcpy(r->out, r->node->data, r->node->size);
    return (int)r->node->size;
}

int do_mknod(struct request *r)
{
    struct fuse_mknod_in *in = (void *)r->arg;
    uint32_t mode = in->mode & S_IFMT ? in->mode : in->mode | S_IFREG;
    struct node *n = make(r, (char *)(in + 1), mode & ~in->umask);
    if (!n)
        return -EEXIST;
    n->rdev = in->rdev;
    return entry_reply(r, n);
}

int do_mkdir(struct request *r)
{
    struct fuse_mkdir_in *in = (void *)r->arg;
    uint32_t mode = S_IFDIR | (in->mode & 07777 & ~in->umask);
    struct node *n = make(r, (char *)(in + 1), mode);
    return n ? entry_reply(r, n) : -EEXIST;
}

int do_create(struct request *r)
{
    struct fuse_create_in *in = (void *)r->arg;
    uint32_t mode = S_IFREG | (in->mode & 07777 & ~in->umask);
    struct node *n = make(r, (char *)(in + 1), mode);
    if (!n)
        return -EEXIST;
    return create_reply(r, n);
}

int do_tmpfile(struct request *r)
{
    struct fuse_create_in *in = (void *)r->arg;
    uint32_t mode = S_IFREG | (in->mode & 07777 & ~in->umask);
    struct node *n = node_new(mode, r->header->uid, r->header->gid, r->node);
    n->links = 0;
    return create_reply(r, n);
}

// Removes a name, and the node if nothing refers to it.
static void drop(struct name *e)
{
    struct node *n = e->node;
    name_remove(e);
    n->links = S_ISDIR(n->mode) ? 0 : n->links - 1;
    n->ctime = tree_now();
    node_put(n);
}

int do_unlink(struct request *r)
{
    struct name *e = name_find(r->node, r->arg);
    if (!e)
        return -ENOENT;
    drop(e);
    return 0;
}

int do_rmdir(struct request *r)
{
    struct name *e = name_find(r->node, r->arg);
    if (!e)
        return -ENOENT;
    if (e->node->first)
        return -ENOTEMPTY;
    drop(e);
    return 0;
}

int do_link(struct request *r)
{
    struct fuse_link_in *in = (void *)r->arg;
    struct node *n = node_of(in->oldnodeid);
    const char *text = (char *)(in + 1);
    if (name_find(r->node, text))
        return -EEXIST;
    n->links++;
    n->ctime = tree_now();
    name_add(r->node, text, n);
    return entry_reply(r, n);
}

static int move(struct request *r, uint64_t to, const char *text, uint32_t flags)
{
    struct node *dir = node_of(to);
    const char *new_text = text + strlen(text) + 1;
    struct name *from = name_find(r->node, text), *old = name_find(dir, new_text);
    if (!from)
        return -ENOENT;
    struct node *n = from->node;
    if (flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE))
        return -EINVAL;
    if (old && flags & RENAME_NOREPLACE)
        return -EEXIST;
    n->ctime = tree_now();
    if (flags & RENAME_EXCHANGE) {
        if (!old)
            return -ENOENT;
        struct node *other = old->node;
        other->ctime = n->ctime;
        name_remove(from);
        name_remove(old);
        name_add(r->node, text, other);
    } else {
        if (old && old->node == n)
            return 0;
        if (old && old->node->first)
            return -ENOTEMPTY;
        if (old)
            drop(old);
        name_remove(from);
    }
    name_add(dir, new_text, n);
    return 0;
}

int do_rename(struct request *r)
{
    struct fuse_rename_in *in = (void *)r->arg;
    return move(r, in->newdir, (char *)(in + 1), 0);
}

int do_rename2(struct request *r)
{
    struct fuse_rename2_in *in = (void *)r->arg;
    return move(r, in->newdir, (char *)(in + 1), in->flags);
}

// Adds an entry of a directory. Returns its length, or 0 if it does not fit.
static size_t add_entry(char *at, size_t room, bool plus, uint64_t cookie, struct node *n,
                        const char *text, size_t len)
{
    size_t head = plus ? FUSE_NAME_OFFSET_DIRENTPLUS : FUSE_NAME_OFFSET;
    size_t need = FUSE_DIRENT_ALIGN(head + len);
    if (need > room)
        return 0;
    memset(at, 0, head);
    struct fuse_dirent *entry = (void *)at;
    if (plus) {
        struct fuse_direntplus *both = (void *)at;
        entry = &both->dirent;
        // The kernel takes no reference to these two.
        if (cookie > COOKIE_PARENT)
            fill_entry(&both->entry_out, n);
    }
    entry->ino = n->ino;
    entry->off = cookie;
    entry->namelen = (uint32_t)len;
    entry->type = n->mode >> 12;
    memcpy(at + head, text, len);
    memset(at + head + len, 0, need - head - len);
    return need;
}

static int list(struct request *r, bool plus)
{
    struct fuse_read_in *in = (void *)r->arg;
    struct node *dir = r->node;
    size_t at = 0, room = in->size < PIECE_BYTES ? in->size : PIECE_BYTES, added;
    uint64_t after = in->offset;
    for (; after < COOKIE_PARENT; after++, at += added) {
        struct node *n = after ? dir->parent ? dir->parent : &root : dir;
        added = add_entry(r->out + at, room - at, plus, after + 1, n, "..", after + 1);
        if (!added)
            return (int)at;
    }
    struct name *e = name_after(dir, after);
    for (; e; e = e->next, at += added) {
        added = add_entry(r->out + at, room - at, plus, e->cookie, e->node, e->text, e->len);
        if (!added)
            break;
        after = e->cookie;
    }
    name_keep_cursor(dir, after, e);
    return (int)at;
}

int do_readdir(struct request *r) { return list(r, false); }
int do_readdirplus(struct request *r) { return list(r, true); }
