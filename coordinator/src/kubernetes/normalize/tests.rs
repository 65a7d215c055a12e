//! Tests of what is kept of objects.
