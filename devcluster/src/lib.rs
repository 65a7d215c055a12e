//! A real API server with etcd, and hollow nodes: for tests, benches and `phalanx dev-cluster`.
