//! Leader election on a Lease, with a counter of our own as the term.
