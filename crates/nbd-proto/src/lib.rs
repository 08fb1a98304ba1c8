//! nbd-proto
