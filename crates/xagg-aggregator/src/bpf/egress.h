/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The last step of a broadcast: each copy, on its way out of the interface, takes the next worker of the job. */
#ifndef XAGG_EGRESS_H
#define XAGG_EGRESS_H

#include "admit.h"
#include "emit.h"

/* The body's length and the sums of its words: kept in the bank if it is long, computed if it is short. */
struct body {
	__u32 len;
	__u64 sum;
};

/* The next rank of the fragment's broadcast. A late copy takes neither the turn nor the sum of the fragment that has the
 * bank now. */
inline_always __u32 take_cursor(struct packet *packet, struct body *body)
{
	__u64 sequence = packet->header->sequence;
	__u32 index, rank;
	struct slot *slot = find_slot(packet->job, sequence, &index);
	struct bank *bank;

	if (!slot)
		return MAX_WORKERS;
	bank = &slot->banks[index & 1];
	bpf_spin_lock(&slot->lock);
	rank = bank->sequence == sequence ? bank->cursor : MAX_WORKERS;
	if (rank < packet->job->workers)
		bank->cursor++;
	if (body->len > SHORT_BODY_LEN)
		body->sum = bank->body_sum;
	bpf_spin_unlock(&slot->lock);
	return rank;
}

/* Whether it is a copy of a broadcast that is not addressed yet. */
inline_always int find_frame(struct packet *packet, struct body *body)
{
	void *data = (void *)(long)packet->ctx->data;
	void *end = (void *)(long)packet->ctx->data_end;

	if (data + frame_len() > end)
		return VERDICT_NOT_OURS;
	point(packet, data);
	if (!has_our_version(packet) || !is_same_address(source_of(packet), config_address) ||
	    !is_same_address(destination_of(packet), config_address))
		return VERDICT_NOT_OURS;
	body->len = end - data - frame_len();
	if (body->len == SHORT_BODY_LEN && data + frame_len() + SHORT_BODY_LEN <= end)
		body->sum = short_body_sum(packet->body);
	return VERDICT_CONTINUE;
}

/* Makes the copy one for the next rank. */
inline_always int address_copy(struct packet *packet, struct body *body)
{
	struct header *header = packet->header;
	struct job_key key = { .job = header->job, .view = header->view };
	int is_result = header->kind == KIND_RESULT;
	struct receiver receiver;
	__u32 flow_key, rank;
	int has_joined;

	packet->job = bpf_map_lookup_elem(&jobs, &key);
	if (!packet->job)
		return XDP_DROP;
	packet->counters = counters_of(packet->job->index);
	rank = take_cursor(packet, body);
	flow_key = packet->job->index * MAX_WORKERS + rank;
	packet->flow = bpf_map_lookup_elem(&flows, &flow_key);
	if (!packet->counters || !packet->flow || rank >= packet->job->workers)
		return packet->counters ? (count(packet, REASON_CURSOR), XDP_DROP) : XDP_DROP;
	bpf_spin_lock(&packet->flow->lock);
	has_joined = packet->flow->nonce != 0;
	if (is_result)
		packet->flow->results++;
	take_receiver(&receiver, packet->flow, rank);
	bpf_spin_unlock(&packet->flow->lock);
	/* Where it is on the link is known from its HELLO. */
	if (!has_joined)
		return XDP_DROP;
	if (is_result)
		header->packet_number = receiver.results;
	address(packet, &receiver);
	seal(packet, body->len, body->sum);
	count(packet, COUNT_COPIES);
	return insert_tag(packet->ctx, receiver.tag) ? XDP_DROP : XDP_PASS;
}

/* Answers to one worker are addressed already, and pass; so do the frames of the self-test. */
inline_always int send_copy(struct xdp_md *ctx)
{
	struct packet packet = { .ctx = ctx };
	struct body body = {};

	if (find_frame(&packet, &body) != VERDICT_CONTINUE)
		return XDP_PASS;
	return address_copy(&packet, &body);
}

#endif
