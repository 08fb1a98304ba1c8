//! Numbers that wrap around in the middle of calls.
