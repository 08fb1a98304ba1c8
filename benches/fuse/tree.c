// tree.c - the files of the null server, in memory. One hash table has the names of all
// directories.
#include "tree.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define BUCKETS (1u << 20)
#define CAPACITY_MIN 4096

struct node root;
static struct name **buckets;
static uint64_t last_ino = 1;

static void *checked(void *memory)
{
    if (!memory) {
        fprintf(stderr, "null: out of memory\n");
        abort();
    }
    return memory;
}

struct timespec tree_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return now;
}

void tree_init(void)
{
    buckets = checked(calloc(BUCKETS, sizeof *buckets));
    root.ino = 1;
    root.mode = S_IFDIR | 0755;
    root.links = 2;
    root.lookups = 1;
    root.parent = &root;
    root.cookie = COOKIE_PARENT;
    root.atime = root.mtime = root.ctime = root.btime = tree_now();
}

// ---- nodes

struct node *node_new(uint32_t mode, uint32_t uid, uint32_t gid, const struct node *dir)
{
    struct node *n = checked(calloc(1, sizeof *n));
    n->ino = ++last_ino;
    n->mode = mode;
    n->uid = uid;
    n->gid = gid;
    if (dir->mode & S_ISGID) {
        n->gid = dir->gid;
        if (S_ISDIR(mode))
            n->mode |= S_ISGID;
    }
    n->links = S_ISDIR(mode) ? 2 : 1;
    n->cookie = COOKIE_PARENT;
    n->atime = n->mtime = n->ctime = n->btime = tree_now();
    return n;
}

void node_put(struct node *n)
{
    if (n == &root || n->links || n->lookups || n->opens)
        return;
    while (n->xattrs)
        xattr_remove(&n->xattrs);
    free(n->data);
    free(n);
}

void node_reserve(struct node *n, uint64_t size)
{
    if (size <= n->capacity)
        return;
    uint64_t capacity = n->capacity ? n->capacity : CAPACITY_MIN;
    while (capacity < size)
        capacity *= 2;
    n->data = checked(realloc(n->data, capacity));
    memset(n->data + n->capacity, 0, capacity - n->capacity);
    n->capacity = capacity;
}

// Bytes beyond the size are zero, so that the file can grow over them.
void node_resize(struct node *n, uint64_t size)
{
    if (size < n->size)
        memset(n->data + size, 0, n->size - size);
    else
        node_reserve(n, size);
    n->size = size;
}

void node_zero(struct node *n, uint64_t from, uint64_t to)
{
    if (to > n->size)
        to = n->size;
    if (from < to)
        memset(n->data + from, 0, to - from);
}

void node_drop_set_ids(struct node *n)
{
    if (S_ISDIR(n->mode))
        return;
    n->mode &= ~S_ISUID;
    if (n->mode & S_IXGRP)
        n->mode &= ~S_ISGID;
}

// ---- names

static uint32_t hash_of(const struct node *dir, const char *text)
{
    uint64_t h = 14695981039346656037u ^ (uintptr_t)dir * 0x9E3779B97F4A7C15u;
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 1099511628211u;
    return (uint32_t)(h ^ h >> 32);
}

struct name *name_find(const struct node *dir, const char *text)
{
    uint32_t hash = hash_of(dir, text);
    for (struct name *e = buckets[hash % BUCKETS]; e; e = e->chain)
        if (e->hash == hash && e->dir == dir && !strcmp(e->text, text))
            return e;
    return NULL;
}

static void touch(struct node *dir)
{
    dir->mtime = dir->ctime = tree_now();
}

void name_add(struct node *dir, const char *text, struct node *n)
{
    size_t len = strlen(text);
    struct name *e = checked(malloc(sizeof *e + len + 1));
    memcpy(e->text, text, len + 1);
    e->len = (uint32_t)len;
    e->dir = dir;
    e->node = n;
    e->hash = hash_of(dir, text);
    e->chain = buckets[e->hash % BUCKETS];
    buckets[e->hash % BUCKETS] = e;
    e->cookie = ++dir->cookie;
    e->next = NULL;
    e->prev = dir->last;
    *(dir->last ? &dir->last->next : &dir->first) = e;
    dir->last = e;
    if (!dir->cursor)
        dir->cursor = e;
    if (S_ISDIR(n->mode)) {
        n->parent = dir;
        dir->links++;
    }
    touch(dir);
}

void name_remove(struct name *e)
{
    struct node *dir = e->dir;
    struct name **at = &buckets[e->hash % BUCKETS];
    while (*at != e)
        at = &(*at)->chain;
    *at = e->chain;
    *(e->prev ? &e->prev->next : &dir->first) = e->next;
    *(e->next ? &e->next->prev : &dir->last) = e->prev;
    if (dir->cursor == e)
        dir->cursor = e->next;
    if (S_ISDIR(e->node->mode))
        dir->links--;
    touch(dir);
    free(e);
}

// A directory that is read from its start to its end does not search.
struct name *name_after(struct node *dir, uint64_t after)
{
    if (dir->cursor_at == after && after > COOKIE_PARENT)
        return dir->cursor;
    struct name *e = dir->first;
    while (e && e->cookie <= after)
        e = e->next;
    return e;
}

void name_keep_cursor(struct node *dir, uint64_t after, struct name *next)
{
    dir->cursor_at = after;
    dir->cursor = next;
}

// ---- extended attributes

struct xattr **xattr_find(struct node *n, const char *name)
{
    struct xattr **at = &n->xattrs;
    while (*at && strcmp((*at)->name, name))
        at = &(*at)->next;
    return at;
}

void xattr_set(struct node *n, const char *name, const char *value, uint32_t size)
{
    struct xattr **at = xattr_find(n, name);
    if (*at)
        xattr_remove(at);
    struct xattr *x = checked(malloc(sizeof *x + strlen(name) + 1));
    strcpy(x->name, name);
    x->value = checked(malloc(size + 1));
    memcpy(x->value, value, size);
    x->size = size;
    x->next = n->xattrs;
    n->xattrs = x;
}

void xattr_remove(struct xattr **at)
{
    struct xattr *x = *at;
    *at = x->next;
    free(x->value);
    free(x);
}
