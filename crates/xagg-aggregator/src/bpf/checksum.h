/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* One sum of 32-bit words serves both checksums: folded to 32 bits it is XAgg's (WIRE P3), folded to 16 it is the
 * one's complement sum of UDP (RFC 1071), since 2^16 = 1 modulo 2^16 - 1. */
#ifndef XAGG_CHECKSUM_H
#define XAGG_CHECKSUM_H

#include "xagg.h"

/* The sum of the 32-bit words of a body of 64-bit words: their plain sum holds both halves, that of the upper ones apart. */
struct word_sum {
	__u64 both;
	__u64 upper;
};

inline_always void add_word(struct word_sum *sum, __u64 word)
{
	sum->both += word;
	sum->upper += word >> 32;
}

inline_always __u64 total(const struct word_sum *sum)
{
	return sum->both - (sum->upper << 32) + sum->upper;
}

inline_always __u32 fold32(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	return sum;
}

inline_always __u16 fold16(__u64 sum)
{
	sum = fold32(sum);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* The words of a header, its checksum left out. */
inline_always __u64 header_sum(const struct header *header)
{
	const __u32 *words = (const __u32 *)header;
	__u64 sum = 0;
#pragma unroll
	for (int i = 0; i < 15; i++)
		sum += words[i];
	return sum;
}

/* The words of a full-length body. */
inline_always __u64 full_body_sum(const __u64 *body)
{
	struct word_sum sum = {};
	for (__u32 block = 0; block < blocks(); block++) {
#pragma unroll
		for (int i = 0; i < BLOCK; i++)
			add_word(&sum, body[i]);
		body += BLOCK;
	}
	return total(&sum);
}

/* The words of a short body. */
inline_always __u64 short_body_sum(const __u64 *body)
{
	struct word_sum sum = {};
#pragma unroll
	for (int i = 0; i < SHORT_BODY_LEN / 8; i++)
		add_word(&sum, body[i]);
	return total(&sum);
}

#endif
