//! Custom resources as Rust types; the manifests in deploy/crds are made from them.
