/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Live state. Per-job maps are made when a job is admitted, sized for its whole gradient. */
#ifndef XAGG_MAPS_H
#define XAGG_MAPS_H

#include "xagg.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_JOBS);
	__type(key, struct job_key);
	__type(value, struct job);
} jobs SEC(".maps");

/* Key: job index * MAX_WORKERS + rank. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_JOBS * MAX_WORKERS);
	__type(key, __u32);
	__type(value, struct flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_JOBS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, COUNTERS * sizeof(__u64));
} counters SEC(".maps");

/* Clang describes a type that only an inner map names as a mere declaration, unless a variable has it too. */
const struct slot *slot_is_described __attribute__((unused));

struct slots_of_job {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_JOBS);
	__type(key, __u32);
	__array(values, struct slots_of_job);
} slots SEC(".maps");

/* Key: bank * slots + slot, so that one after the other is used, as memory likes best; value: the lanes. Apart from the slots, since the size of a value is known only when loading.
 * The loader replaces the inner map by one with that size. */
struct lanes_of_job {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, 64);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_JOBS);
	__type(key, __u32);
	__array(values, struct lanes_of_job);
} sums SEC(".maps");

/* As many entries of the one interface as the job has workers: a broadcast makes one copy for each. */
struct copies_of_job {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, MAX_WORKERS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct bpf_devmap_val));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_JOBS);
	__type(key, __u32);
	__array(values, struct copies_of_job);
} copies SEC(".maps");

#endif
