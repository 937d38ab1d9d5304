//! Network namespaces for tests.
