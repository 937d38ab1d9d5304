//! The native half of the Python package `xagg`.
