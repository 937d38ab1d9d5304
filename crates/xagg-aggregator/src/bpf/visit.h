/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Between admission and answer: finds the slot, visits it under its lock, and notes in the flow what came of it. */
#ifndef XAGG_VISIT_H
#define XAGG_VISIT_H

#include "finish.h"
#include "maps.h"

/* What an answer needs to know of its receiver: a copy that outlives the flow's lock. */
struct receiver {
	__u64 cookie;
	__u32 tag;
	__u32 largest;
	__u32 receipts;
	__u32 echo;
	__u32 results;
	__u16 marks;
	__u16 port;
	__u16 rank;
	__u8 mac[ETH_ALEN];
};

inline_always void take_receiver(struct receiver *receiver, const struct flow *flow, __u32 rank)
{
	receiver->cookie = flow->cookie;
	receiver->tag = flow->tag;
	receiver->port = flow->port;
	receiver->largest = flow->largest;
	receiver->receipts = flow->receipts;
	receiver->echo = flow->echo;
	receiver->results = flow->results;
	receiver->marks = flow->marks;
	receiver->rank = rank;
	__builtin_memcpy(receiver->mac, flow->mac, ETH_ALEN);
}

/* Finds slot, bank and lanes of a sequence; all lookups come before the lock. */
inline_always struct slot *find_slot(const struct job *job, __u64 sequence, __u32 *bank)
{
	__u64 generation = sequence / job->slots;
	__u32 index = job->index, key = sequence - generation * job->slots;
	void *slots_of_job = bpf_map_lookup_elem(&slots, &index);

	*bank = generation & 1;
	return slots_of_job ? bpf_map_lookup_elem(slots_of_job, &key) : 0;
}

inline_always __u64 *find_sums(const struct job *job, __u32 slot, __u32 bank)
{
	__u32 index = job->index, key = bank * job->slots + slot;
	void *sums_of_job = bpf_map_lookup_elem(&sums, &index);

	return sums_of_job ? bpf_map_lookup_elem(sums_of_job, &key) : 0;
}

inline_always int visit(struct packet *packet, struct snapshot *snapshot)
{
	const struct header *header = packet->header;
	int is_pull = header->kind == KIND_PULL, answer;
	__u64 sequence = header->sequence;
	__u32 index;
	struct slot *slot = find_slot(packet->job, sequence, &index);
	__u64 *lanes = find_sums(packet->job, header->slot, index);
	struct bank *bank, *other;

	if (!slot || !lanes)
		return ANSWER_FIELD;
	bank = &slot->banks[index & 1];
	other = &slot->banks[~index & 1];
	bpf_spin_lock(&slot->lock);
	answer = is_pull ? visit_pull(bank, packet) : visit_gradient(bank, other, lanes, packet);
	if (answer == ANSWER_RESULT || answer == ANSWER_RESULT_AGAIN)
		bank->body_sum = copy_result(packet->body, lanes);
	take_snapshot(snapshot, bank);
	if (answer == ANSWER_PENDING && (bank->status == STATUS_EMPTY || bank->sequence != sequence))
		__builtin_memset(snapshot->seen, 0, sizeof(snapshot->seen));
	bpf_spin_unlock(&slot->lock);
	return answer;
}

inline_always int is_added(int answer)
{
	return answer == ANSWER_NONE || answer == ANSWER_RESULT || answer == ANSWER_REDO;
}

/* Whether a GRADIENT with this answer is receipted (WIRE H6). */
inline_always int is_receipted(int answer)
{
	return is_added(answer) || answer == ANSWER_RESULT_AGAIN || answer == ANSWER_REDO_AGAIN ||
	       answer == ANSWER_DUPLICATE || answer == ANSWER_STALE;
}

/* WIRE H5, H6. */
inline_always void note_receipt(struct flow *flow, __u32 packet_number, __u32 timestamp)
{
	__u32 ahead = packet_number - flow->largest, behind = flow->largest - packet_number;

	if (ahead != 0 && ahead < 1u << 31) {
		flow->receipts = ahead < 32 ? flow->receipts << (ahead & 31) | 1 : 1;
		flow->largest = packet_number;
		flow->echo = timestamp;
	} else if (behind < 32) {
		flow->receipts |= 1u << (behind & 31);
	}
}

/* Notes in the flow what came of its packet; what the answer needs to know of the flow. */
inline_always void settle(const struct packet *packet, int answer, struct receiver *receiver)
{
	const struct header *header = packet->header;
	int is_gradient = header->kind == KIND_GRADIENT;
	__u32 packet_number = header->packet_number, timestamp = header->timestamp;
	__u64 sequences = header->sequence + 1, now = now_ns();
	struct flow *flow = packet->flow;

	bpf_spin_lock(&flow->lock);
	flow->packets++;
	flow->marks += packet->is_marked;
	flow->last_heard = now;
	if (is_gradient && is_receipted(answer))
		note_receipt(flow, packet_number, timestamp);
	if (is_gradient && is_added(answer) && flow->sequences < sequences)
		flow->sequences = sequences;
	if (answer == ANSWER_RESULT_AGAIN || answer == ANSWER_REDO_AGAIN)
		flow->results++;
	take_receiver(receiver, flow, packet->rank);
	bpf_spin_unlock(&flow->lock);
}

#endif
