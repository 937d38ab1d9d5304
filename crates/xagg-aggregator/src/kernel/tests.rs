//! Tests of the kernel program through BPF_PROG_TEST_RUN: its rules one by one, and against its twin.

mod constants;
mod cost;
mod differential;
mod edges;
mod frames;
mod generator;
mod harness;
mod links;
mod refusal;
mod replies;
mod run;
mod table;
mod tagged;
