//! The aggregator alone, held to docs/WIRE.md: who gets in, who is answered, what slots do with a packet, and sums under any order of arrival.
//! The kernel program is held to the same rules by its own table tests, which need root; these do not.

mod admission;
mod fixture;
mod jobs;
mod replies;
mod slots;
mod sums;
