//! Builds the binaries of Kubernetes that the tests start, into a cache outside the tree.
