/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Stage 3: the lane loops (WIRE F4). All run under the slot's lock, so they call no helper. Two 32-bit lanes are added as
 * one 64-bit integer: being biased, neither is negative, and their sums do not carry. */
#ifndef XAGG_ADD_H
#define XAGG_ADD_H

#include "xagg.h"

inline_always __u64 both_lanes(__u32 lane)
{
	return (__u64)lane << 32 | lane;
}

/* How lanes with `count` contributions are shifted right by `shift` without losing their bias. */
struct shift {
	__u32 by;
	__u64 mask; /* what the upper lane's bits must not reach */
	__u64 rebias;
};

inline_always struct shift shift_of(__u32 by, __u32 contributions, __u32 bias)
{
	struct shift shift = {
		.by = by,
		.mask = both_lanes(0xffffffff >> by),
		.rebias = both_lanes(contributions * (bias - (bias >> by))),
	};
	return shift;
}

inline_always __u64 shifted(__u64 lanes, const struct shift *shift)
{
	return ((lanes >> shift->by) & shift->mask) + shift->rebias;
}

inline_always void copy_lanes(__u64 *sums, const __u64 *body)
{
	for (__u32 block = 0; block < blocks(); block++) {
#pragma unroll
		for (int i = 0; i < BLOCK; i++)
			sums[i] = body[i];
		sums += BLOCK;
		body += BLOCK;
	}
}

inline_always void add_lanes(__u64 *sums, const __u64 *body)
{
	for (__u32 block = 0; block < blocks(); block++) {
#pragma unroll
		for (int i = 0; i < BLOCK; i++)
			sums[i] += body[i];
		sums += BLOCK;
		body += BLOCK;
	}
}

inline_always void add_shifted_lanes(__u64 *sums, const __u64 *body, const struct shift *shift)
{
	for (__u32 block = 0; block < blocks(); block++) {
#pragma unroll
		for (int i = 0; i < BLOCK; i++)
			sums[i] += shifted(body[i], shift);
		sums += BLOCK;
		body += BLOCK;
	}
}

inline_always void shift_and_add_lanes(__u64 *sums, const __u64 *body, const struct shift *shift)
{
	for (__u32 block = 0; block < blocks(); block++) {
#pragma unroll
		for (int i = 0; i < BLOCK; i++)
			sums[i] = shifted(sums[i], shift) + body[i];
		sums += BLOCK;
		body += BLOCK;
	}
}

/* Adds a contribution's lanes and exponent; beyond the guard bits only the exponent (WIRE F5). */
inline_always void align_and_add(struct bank *bank, __u64 *sums, const struct packet *packet)
{
	__s32 exponent = packet->header->exponent, before = bank->exponent, largest, least;
	struct shift shift;

	if (exponent == EXPONENT_ZERO) {
		largest = before;
		least = bank->least_exponent;
	} else if (before == EXPONENT_ZERO) {
		largest = least = exponent;
	} else {
		largest = exponent > before ? exponent : before;
		least = exponent < bank->least_exponent ? exponent : bank->least_exponent;
	}
	bank->exponent = largest;
	bank->least_exponent = least;
	if ((__u32)(largest - least) > packet->job->guard_bits)
		return;
	if (bank->contributors == 0) {
		copy_lanes(sums, packet->body);
	} else if (exponent != EXPONENT_ZERO && exponent < largest) {
		shift = shift_of((largest - exponent) & 31, 1, packet->job->bias);
		add_shifted_lanes(sums, packet->body, &shift);
	} else if (before != EXPONENT_ZERO && before < largest) {
		shift = shift_of((largest - before) & 31, bank->contributors, packet->job->bias);
		shift_and_add_lanes(sums, packet->body, &shift);
	} else {
		add_lanes(sums, packet->body);
	}
}

#endif
