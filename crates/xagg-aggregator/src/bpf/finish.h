/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Stage 4: what a GRADIENT or a PULL finds in its slot and does there, under the slot's lock (WIRE section 4). */
#ifndef XAGG_FINISH_H
#define XAGG_FINISH_H

#include "add.h"
#include "checksum.h"

/* What is to be answered. */
enum answer {
	ANSWER_NONE,	    /* added; others are missing */
	ANSWER_RESULT,	    /* to everybody */
	ANSWER_REDO,	    /* to everybody */
	ANSWER_MISMATCH,    /* to everybody */
	ANSWER_RESULT_AGAIN,
	ANSWER_REDO_AGAIN,
	ANSWER_MISMATCH_AGAIN,
	ANSWER_DUPLICATE,
	ANSWER_STALE,
	ANSWER_PENDING,
	ANSWER_WINDOW,
	ANSWER_FIELD,
};

/* What a bank holds, as far as answers need it: a copy that outlives the lock. */
struct snapshot {
	__u64 seen[4];
	__u64 body_sum;
	__u32 signature;
	__u32 other_signature;
	__u32 weight;
	__u16 contributors;
	__s16 exponent;
	__u16 first_rank;
	__u16 other_rank;
	__u16 nonfinite;
};

inline_always void take_snapshot(struct snapshot *snapshot, const struct bank *bank)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		snapshot->seen[i] = bank->seen[i];
	snapshot->body_sum = bank->body_sum;
	snapshot->signature = bank->signature;
	snapshot->other_signature = bank->other_signature;
	snapshot->weight = bank->weight;
	snapshot->contributors = bank->contributors;
	snapshot->exponent = bank->exponent;
	snapshot->first_rank = bank->first_rank;
	snapshot->other_rank = bank->other_rank;
	snapshot->nonfinite = bank->nonfinite;
}

/* The result's lanes become the packet's body; returns the sums of its words. */
inline_always __u64 copy_result(__u64 *body, const __u64 *sums)
{
	struct word_sum sum = {};

	for (__u32 block = 0; block < blocks(); block++) {
#pragma unroll
		for (int i = 0; i < BLOCK; i++) {
			body[i] = sums[i];
			add_word(&sum, sums[i]);
		}
		body += BLOCK;
		sums += BLOCK;
	}
	return body_sums(&sum);
}

inline_always int is_free(const struct bank *bank, const struct bank *other, __u64 sequence, __u64 slots)
{
	if (bank->status == STATUS_EMPTY ? sequence >= 2 * slots : bank->sequence + 2 * slots != sequence)
		return 0;
	return sequence < slots || (other->status == STATUS_DONE && other->sequence + slots == sequence);
}

inline_always void forget_contributions(struct bank *bank)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		bank->seen[i] = 0;
	bank->weight = 0;
	bank->contributors = 0;
	bank->cursor = 0;
	bank->body_sum = 0;
}

inline_always void begin(struct bank *bank, const struct header *header)
{
	forget_contributions(bank);
	bank->status = STATUS_GATHERING;
	bank->sequence = header->sequence;
	bank->signature = header->signature;
	bank->first_rank = header->rank;
	bank->other_rank = 0;
	bank->other_signature = 0;
	bank->exponent = EXPONENT_ZERO;
	bank->least_exponent = EXPONENT_ZERO;
	bank->redo = 0;
	bank->nonfinite = 0;
}

/* The last contribution is there (WIRE F5, S4). */
inline_always int complete(struct bank *bank, const struct packet *packet)
{
	bank->cursor = 0;
	bank->body_sum = 0;
	if ((__u32)(bank->exponent - bank->least_exponent) > packet->job->guard_bits && !bank->nonfinite) {
		forget_contributions(bank);
		bank->redo = 1;
		bank->least_exponent = bank->exponent;
		return ANSWER_REDO;
	}
	bank->status = STATUS_DONE;
	return ANSWER_RESULT;
}

/* WIRE S4: all of it or nothing. */
inline_always int contribute(struct bank *bank, __u64 *sums, const struct packet *packet)
{
	const struct header *header = packet->header;

	align_and_add(bank, sums, packet);
	bank->seen[(packet->rank >> 6) & 3] |= 1ull << (packet->rank & 63);
	bank->contributors++;
	bank->weight += header->weight;
	bank->nonfinite |= !!(header->flags & FLAG_NONFINITE);
	return bank->contributors < packet->job->workers ? ANSWER_NONE : complete(bank, packet);
}

/* A GRADIENT whose bank gathers its sequence (WIRE S1). */
inline_always int gather(struct bank *bank, __u64 *sums, const struct packet *packet)
{
	const struct header *header = packet->header;
	int redo = !!(header->flags & FLAG_REDO);

	if (header->signature != bank->signature) {
		bank->status = STATUS_MISMATCHED;
		bank->other_rank = packet->rank;
		bank->other_signature = header->signature;
		bank->cursor = 0;
		return ANSWER_MISMATCH;
	}
	if (!redo && bank->redo)
		return ANSWER_REDO_AGAIN;
	if (redo && (!bank->redo || header->exponent != bank->exponent))
		return ANSWER_FIELD;
	if (bank->seen[(packet->rank >> 6) & 3] >> (packet->rank & 63) & 1)
		return ANSWER_DUPLICATE;
	return contribute(bank, sums, packet);
}

inline_always int visit_gradient(struct bank *bank, const struct bank *other, __u64 *sums,
				 const struct packet *packet)
{
	const struct header *header = packet->header;
	__u64 sequence = header->sequence;

	if (bank->status == STATUS_EMPTY || sequence > bank->sequence) {
		if (!is_free(bank, other, sequence, packet->job->slots))
			return ANSWER_WINDOW;
		if (header->flags & FLAG_REDO)
			return ANSWER_FIELD;
		begin(bank, header);
	} else if (sequence < bank->sequence) {
		return ANSWER_STALE;
	} else if (bank->status == STATUS_DONE) {
		return ANSWER_RESULT_AGAIN;
	} else if (bank->status == STATUS_MISMATCHED) {
		return ANSWER_MISMATCH_AGAIN;
	}
	return gather(bank, sums, packet);
}

/* WIRE S5. Nothing in the bank changes. */
inline_always int visit_pull(const struct bank *bank, const struct packet *packet)
{
	const struct header *header = packet->header;

	if (bank->status == STATUS_EMPTY || header->sequence > bank->sequence)
		return ANSWER_PENDING;
	if (header->sequence < bank->sequence)
		return ANSWER_STALE;
	if (bank->status == STATUS_DONE)
		return ANSWER_RESULT_AGAIN;
	if (bank->status == STATUS_MISMATCHED)
		return ANSWER_MISMATCH_AGAIN;
	return bank->redo && !(header->flags & FLAG_REDO) ? ANSWER_REDO_AGAIN : ANSWER_PENDING;
}

#endif
