/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Stage 2: only registered workers get in, in the order of WIRE H3. */
#ifndef XAGG_ADMIT_H
#define XAGG_ADMIT_H

#include "checksum.h"
#include "ip.h"
#include "maps.h"

inline_always __u64 *counters_of(__u32 index)
{
	return bpf_map_lookup_elem(&counters, &index);
}

/* Which worker of which job sends it; 0 or a reason. */
inline_always int identify(struct packet *packet)
{
	const struct header *header = packet->header;
	struct job_key key = { .job = header->job, .view = header->view };
	__u32 flow_key;

	if (header->magic != MAGIC || header->version != VERSION)
		return REASON_MAGIC;
	if (header->kind != KIND_HELLO && header->kind != KIND_GRADIENT && header->kind != KIND_PULL)
		return REASON_KIND;
	packet->job = bpf_map_lookup_elem(&jobs, &key);
	if (!packet->job)
		return REASON_JOB;
	packet->counters = counters_of(packet->job->index);
	packet->rank = header->rank;
	if (!packet->counters || packet->rank >= packet->job->workers)
		return REASON_WORKER;
	flow_key = packet->job->index * MAX_WORKERS + packet->rank;
	packet->flow = bpf_map_lookup_elem(&flows, &flow_key);
	if (!packet->flow || !is_same_address(source_of(packet), packet->flow->address) ||
	    packet->udp->source != packet->flow->port)
		return REASON_WORKER;
	if (header->cookie != packet->flow->cookie)
		return REASON_COOKIE;
	return VERDICT_CONTINUE;
}

/* WIRE P3, P7. */
inline_always int is_intact(const struct packet *packet)
{
	__u64 plain;

	if (is_bare(packet->job, packet->header))
		return packet->header->checksum == 0;
	return packet->header->checksum ==
	       checksum(packet->header, full_body_len(), full_body_sum(packet->body), &plain);
}

inline_always int admit(struct packet *packet)
{
	int reason = identify(packet);

	if (reason)
		return reason;
	if (!is_intact(packet))
		return REASON_CHECKSUM;
	count(packet, COUNT_PACKETS);
	return VERDICT_CONTINUE;
}

/* Whether a GRADIENT or PULL is meant for this life of the aggregator, from a worker that has said HELLO. */
inline_always int is_current(const struct packet *packet)
{
	return packet->header->incarnation == config_incarnation && packet->flow->nonce != 0;
}

/* The fields of a GRADIENT (WIRE H3, last sentence), but for the slot. */
inline_always int has_legal_fields(const struct header *header)
{
	__s16 exponent = header->exponent;

	return header->weight >= 1 && header->weight <= MAX_WEIGHT && header->contributors == 1 &&
	       (exponent == EXPONENT_ZERO || (exponent >= EXPONENT_MIN && exponent <= EXPONENT_MAX));
}

#endif
