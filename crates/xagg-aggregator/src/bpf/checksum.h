/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Two sums of a packet's 32-bit words: the plain one, folded to 16 bits, is the one's complement sum of UDP (RFC 1071), since
 * 2^16 = 1 modulo 2^16 - 1. XAgg's own (WIRE P3) weighs word i of m with 2 (m - i) + 1. */
#ifndef XAGG_CHECKSUM_H
#define XAGG_CHECKSUM_H

#include "xagg.h"

/* The words of a body, taken two at a time as 64-bit words, of which there are n: `both` holds the sum of the lower halves and,
 * shifted, that of the upper ones, which `upper` has alone. The others are the sums of what these two were after each word: they
 * count word j (n - j) times. All wrap, what is computed from them does not. */
struct word_sum {
	__u64 both;
	__u64 upper;
	__u64 both_weighted;
	__u64 upper_weighted;
};

inline_always void add_word(struct word_sum *sum, __u64 word)
{
	sum->both += word;
	sum->upper += word >> 32;
	sum->both_weighted += sum->both;
	sum->upper_weighted += sum->upper;
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

/* Both sums of a body in one: the plain one below, the weighted one above. The lower half of word j weighs 4 (n - j) + 1, the
 * upper one 4 (n - j) - 1. */
inline_always __u64 body_sums(const struct word_sum *sum)
{
	__u64 plain = sum->both - (sum->upper << 32) + sum->upper;
	__u64 counted = sum->both_weighted - (sum->upper_weighted << 32) + sum->upper_weighted;

	return (__u64)fold32(4 * counted + plain - 2 * sum->upper) << 32 | fold32(plain);
}

inline_always __u32 plain_sum(__u64 body_sum)
{
	return body_sum;
}

inline_always __u32 weighted_sum(__u64 body_sum)
{
	return body_sum >> 32;
}

/* Both sums of the words of a header, its checksum left out. */
inline_always void sum_header(const struct header *header, __u64 *plain, __u64 *counted)
{
	const __u32 *words = (const __u32 *)header;

	*plain = *counted = 0;
#pragma unroll
	for (int i = 0; i < 15; i++) {
		*plain += words[i];
		*counted += *plain;
	}
}

/* WIRE P3, for a header before a body of `body_len` bytes; `plain` becomes the sum of the header's words. */
inline_always __u32 checksum(const struct header *header, __u32 body_len, __u64 body_sum, __u64 *plain)
{
	__u64 counted;

	sum_header(header, plain, &counted);
	return fold32(2 * counted + (body_len / 2 + 3) * *plain + weighted_sum(body_sum));
}

/* Whether the packet has no checksum: it has lanes, and the job's packets with lanes have none (WIRE P7). */
inline_always int is_bare(const struct job *job, const struct header *header)
{
	return !job->checksum && (header->kind == KIND_GRADIENT ||
				  (header->kind == KIND_RESULT && !(header->flags & FLAG_REDO)));
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
	return body_sums(&sum);
}

/* The words of a short body. */
inline_always __u64 short_body_sum(const __u64 *body)
{
	struct word_sum sum = {};
#pragma unroll
	for (int i = 0; i < SHORT_BODY_LEN / 8; i++)
		add_word(&sum, body[i]);
	return body_sums(&sum);
}

#endif
