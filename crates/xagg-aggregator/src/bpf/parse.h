/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Stage 1: is it ours, and has it the exact length (WIRE P2)? */
#ifndef XAGG_PARSE_H
#define XAGG_PARSE_H

#include "xagg.h"

#define IP_MORE_FRAGMENTS 0x2000
#define IP_FRAGMENT_OFFSET 0x1fff

/* A packet with IP options is ours if its port is: then it is refused. */
inline_always int parse_options(const struct iphdr *ip, const void *end)
{
	const struct udphdr *udp = (const void *)ip + ip->ihl * 4;

	if (ip->ihl < 5 || (const void *)(udp + 1) > end || udp->dest != config_port)
		return VERDICT_NOT_OURS;
	return REASON_FRAGMENT;
}

/* Finds header and body. VERDICT_NOT_OURS: not for our address and port. */
inline_always int parse(struct packet *packet)
{
	void *data = (void *)(long)packet->ctx->data;
	void *end = (void *)(long)packet->ctx->data_end;
	__u32 length = FRAME_LEN + full_body_len();
	void *limit;

	if (data + HEADER_OFFSET > end)
		return VERDICT_NOT_OURS;
	point(packet, data);
	if (packet->eth->h_proto != bpf_htons(ETH_P_IP) || packet->ip->version != 4 ||
	    packet->ip->protocol != IPPROTO_UDP || packet->ip->daddr != config_address)
		return VERDICT_NOT_OURS;
	/* Only the first fragment has ports. */
	if (packet->ip->frag_off & bpf_htons(IP_FRAGMENT_OFFSET))
		return VERDICT_NOT_OURS;
	if (packet->ip->ihl != 5)
		return parse_options(packet->ip, end);
	if (packet->udp->dest != config_port)
		return VERDICT_NOT_OURS;
	if (packet->ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS))
		return REASON_FRAGMENT;
	limit = data + length;
	if (limit > end)
		return REASON_LENGTH;
	/* Apart, since the verifier learns nothing from one test for equality. */
	barrier_var(limit);
	if (limit < end)
		return REASON_LENGTH;
	if (packet->ip->tot_len != bpf_htons(length - IP_OFFSET) || packet->udp->len != bpf_htons(length - UDP_OFFSET))
		return REASON_LENGTH;
	packet->is_marked = (packet->ip->tos & ECN_MASK) == ECN_CE;
	return VERDICT_CONTINUE;
}

#endif
