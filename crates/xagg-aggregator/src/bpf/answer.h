/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* One function for each kind that an aggregator takes: HELLO, GRADIENT and PULL. */
#ifndef XAGG_ANSWER_H
#define XAGG_ANSWER_H

#include "admit.h"
#include "emit.h"

inline_always int drop_for(struct packet *packet, __u32 reason)
{
	count(packet, reason);
	return XDP_DROP;
}

/* The flow's own packets are counted although nothing came of them. */
inline_always int reject_early(struct packet *packet, __u32 reason)
{
	struct snapshot nothing = {};
	struct receiver receiver;

	settle(packet, ANSWER_FIELD, &receiver);
	__builtin_memcpy(receiver.mac, packet->eth->h_source, ETH_ALEN);
	receiver.tag = packet->tag;
	return reject(packet, &receiver, reason, &nothing);
}

/* Takes the nonce if it is the first or the same; learns where the worker is on the link. */
inline_always int open_flow(struct packet *packet, __u64 nonce)
{
	struct flow *flow = packet->flow;
	int is_same;

	bpf_spin_lock(&flow->lock);
	if (flow->nonce == 0)
		flow->nonce = nonce;
	is_same = flow->nonce == nonce;
	if (is_same) {
		__builtin_memcpy(flow->mac, packet->eth->h_source, ETH_ALEN);
		flow->tag = packet->tag;
	}
	bpf_spin_unlock(&flow->lock);
	return is_same;
}

/* Whether the sender's job file says the same of the job as ours. */
inline_always int has_shape(const struct header *header, const struct job *job)
{
	__u32 checksum = header->flags & FLAG_NO_CHECKSUM ? 0 : 1;

	return header->slot == job->slots && header->contributors == job->workers && checksum == job->checksum;
}

/* WIRE H1, H2. */
inline_always int answer_hello(struct packet *packet)
{
	struct header *header = packet->header;
	struct receiver receiver;

	if (header->sequence == 0) {
		settle(packet, ANSWER_FIELD, &receiver);
		return drop_for(packet, REASON_FIELD);
	}
	if (!has_shape(header, packet->job))
		return reject_early(packet, REASON_SHAPE);
	if (!open_flow(packet, header->sequence))
		return reject_early(packet, REASON_NONCE);
	settle(packet, ANSWER_FIELD, &receiver);
	count(packet, COUNT_WELCOME);
	write_header(header, KIND_WELCOME, config_welcome_flags);
	header->grant = packet->job->grant;
	return reply(packet, &receiver, full_body_len(), full_body_sum(packet->body));
}

/* What everybody gets. */
inline_always int answer_all(struct packet *packet, int answer, const struct snapshot *snapshot)
{
	struct header *header = packet->header;

	if (answer == ANSWER_RESULT) {
		count(packet, COUNT_BROADCAST);
		write_result(header, snapshot);
		return broadcast(packet, full_body_len());
	}
	if (answer == ANSWER_REDO) {
		count(packet, COUNT_REDO);
		write_redo(header, snapshot);
		return broadcast(packet, 0);
	}
	if (!may_reject(packet, REASON_MISMATCH))
		return XDP_DROP;
	write_rejection(packet, REASON_MISMATCH, snapshot);
	return broadcast(packet, SHORT_BODY_LEN);
}

/* What the sender alone gets. */
inline_always int answer_sender(struct packet *packet, int answer, const struct snapshot *snapshot,
				const struct receiver *receiver)
{
	struct header *header = packet->header;
	__u32 body_len = 0;
	__u64 body_sum = 0;

	if (answer == ANSWER_WINDOW)
		return reject(packet, receiver, REASON_WINDOW, snapshot);
	if (answer == ANSWER_MISMATCH_AGAIN)
		return reject(packet, receiver, REASON_MISMATCH, snapshot);
	if (answer == ANSWER_PENDING) {
		count(packet, COUNT_PENDING);
		body_len = SHORT_BODY_LEN;
		body_sum = write_pending(packet, snapshot);
	} else if (answer == ANSWER_RESULT_AGAIN) {
		count(packet, COUNT_RESULT_AGAIN);
		write_result(header, snapshot);
		header->packet_number = receiver->results;
		body_len = full_body_len();
		body_sum = snapshot->body_sum;
	} else if (answer == ANSWER_REDO_AGAIN) {
		count(packet, COUNT_RESULT_AGAIN);
		write_redo(header, snapshot);
		header->packet_number = receiver->results;
	} else {
		count(packet, COUNT_ACK);
		write_header(header, KIND_ACK, 0);
	}
	return reply(packet, receiver, body_len, body_sum);
}

/* Counts what a GRADIENT was good for, beside its answer. */
inline_always void count_gradient(struct packet *packet, int answer)
{
	if (is_added(answer))
		count(packet, COUNT_ADDED);
	else if (answer == ANSWER_STALE)
		count(packet, COUNT_STALE);
	else if (is_receipted(answer))
		count(packet, COUNT_DUPLICATE);
}

inline_always void count_pull(struct packet *packet, int answer)
{
	count(packet, COUNT_PULL);
	if (answer == ANSWER_STALE)
		count(packet, COUNT_STALE);
}

/* GRADIENT and PULL (WIRE section 4). */
inline_always int answer_fragment(struct packet *packet)
{
	struct header *header = packet->header;
	int is_pull = header->kind == KIND_PULL, wants_ack = header->flags & FLAG_ACK_REQUEST, answer;
	struct snapshot snapshot;
	struct receiver receiver;

	if (!is_current(packet))
		return reject_early(packet, REASON_INCARNATION);
	if (header->slot != header->sequence % packet->job->slots || (!is_pull && !has_legal_fields(header)))
		answer = ANSWER_FIELD;
	else
		answer = visit(packet, &snapshot);
	settle(packet, answer, &receiver);
	if (answer == ANSWER_FIELD)
		return drop_for(packet, REASON_FIELD);
	if (is_pull)
		count_pull(packet, answer);
	else
		count_gradient(packet, answer);
	if (answer == ANSWER_NONE && !wants_ack)
		return XDP_DROP;
	if (answer == ANSWER_RESULT || answer == ANSWER_REDO || answer == ANSWER_MISMATCH)
		return answer_all(packet, answer, &snapshot);
	return answer_sender(packet, answer, &snapshot, &receiver);
}

#endif
