//! xts
