// tree.h - the files of the null server, in memory.
#ifndef TREE_H
#define TREE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct node;

// A name in a directory.
struct name {
    struct name *chain, *next, *prev; // same hash; order of the directory
    struct node *dir, *node;
    uint64_t cookie; // position for READDIR, ascending
    uint32_t hash, len;
    char text[];
};

struct xattr {
    struct xattr *next;
    uint32_t size;
    char *value;
    char name[];
};

struct node {
    uint64_t ino, size, capacity;
    uint64_t lookups; // references of the kernel that it has not forgotten
    uint32_t opens, links, mode, uid, gid, rdev;
    struct timespec atime, mtime, ctime, btime;
    char *data; // content of a file, or target of a symbolic link
    struct xattr *xattrs;
    // Of a directory:
    struct node *parent;
    struct name *first, *last;
    uint64_t cookie;      // the last one in use
    struct name *cursor;  // first name after `cursor_at`
    uint64_t cursor_at;
};

// Cookies of the entries `.` and `..`; those of names are higher.
enum { COOKIE_SELF = 1, COOKIE_PARENT = 2 };

extern struct node root;

void tree_init(void);
struct timespec tree_now(void);

struct node *node_new(uint32_t mode, uint32_t uid, uint32_t gid, const struct node *dir);
// Frees a node without a name that the kernel does not use.
void node_put(struct node *n);
void node_reserve(struct node *n, uint64_t size);
void node_resize(struct node *n, uint64_t size);
void node_zero(struct node *n, uint64_t from, uint64_t to);
void node_drop_set_ids(struct node *n);

struct name *name_find(const struct node *dir, const char *text);
void name_add(struct node *dir, const char *text, struct node *n);
void name_remove(struct name *e);
// Returns the first name with a higher cookie than `after`.
struct name *name_after(struct node *dir, uint64_t after);
// Notes that READDIR goes on at `next`, the first name after `after`.
void name_keep_cursor(struct node *dir, uint64_t after, struct name *next);

struct xattr **xattr_find(struct node *n, const char *name);
void xattr_set(struct node *n, const char *name, const char *value, uint32_t size);
void xattr_remove(struct xattr **at);
#endif
