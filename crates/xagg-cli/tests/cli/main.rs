//! The built command: wrong usage, whole jobs over loopback, whole jobs in network namespaces.

mod clock;
mod common;
mod faults;
mod flood;
mod loopback;
mod namespaces;
mod stragglers;
mod usage;
