//! Tests of the watches against a server of the process itself.
