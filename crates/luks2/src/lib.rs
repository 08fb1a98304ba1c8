//! luks2
