// policy.h - how the threads of the null server wait: EVFS's policy.
#ifndef POLICY_H
#define POLICY_H
#include <stdbool.h>
#include <stdint.h>

uint64_t monotonic_ns(void);

// ---- the time to poll before a sleep (crates/fuse-mount/src/waiting.rs)

void waiting_init(void);
// Notes that a leader waits. Returns the nanoseconds for which an only leader polls.
uint64_t waiting_window(uint64_t now);
// Whether one leader that sleeps is better than several.
bool waiting_is_for_one(void);
// Adapts the window after a leader has slept.
void waiting_slept(uint64_t now);

// ---- the number of leaders (crates/fuse-mount/src/demand.rs)

struct demand {
    uint32_t backlog, alone, too_few, client;
};

enum was_there { NOT_ASKED, WAS_NOT_THERE, WAS_THERE };

// A request that a leader has served. None blocks.
struct served {
    bool awaited;             // a client waits for the reply
    enum was_there was_there; // when the leader asked first
    uint32_t client;          // thread that sent it
    bool with_others;         // another leader served one when it began
    bool is_for_one;          // one leader is enough
    bool is_on_one_cpu;       // because frequent requests meet a single CPU
};

enum advice { STAY, ONE_MORE, ONE_LESS };

enum advice demand_note(struct demand *d, struct served served, unsigned leaders);

// ---- the leaders (crates/fuse-mount/src/leadership.rs, without the part for requests that block)

void leaders_init(unsigned threads);
// Waits until this thread is a leader. Returns false once the session has ended.
bool leaders_follow(void);
void leaders_add_seat(void);
// Removes the seat of this idle leader, unless no other one is idle. Returns whether it did.
bool leaders_leave_seat(void);
unsigned leaders_seats(void);
// Begins to serve a request. Returns whether another leader serves one, if clients wait for both.
bool leaders_begin(bool awaited);
// Notes that the reply is sent next.
void leaders_answer(bool awaited);
void leaders_finish(void);
void leaders_end(void);
#endif
