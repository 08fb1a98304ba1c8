//! End-to-end and interoperability tests of the `evfs` program.
