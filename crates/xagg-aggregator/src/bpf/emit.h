/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Stage 5: the packet becomes its answer (WIRE section 4, H4, H6, H7, P3, P4). */
#ifndef XAGG_EMIT_H
#define XAGG_EMIT_H

#include "checksum.h"
#include "ip.h"
#include "maps.h"
#include "tag.h"
#include "visit.h"

#define IPV4_DONT_FRAGMENT 0x4000
#define HOPS 64

/* Keeps what all answers keep: job, view and sequence. The receiver is filled in by address(). */
inline_always void write_header(struct header *header, __u8 kind, __u16 flags)
{
	header->kind = kind;
	header->flags = flags;
	header->packet_number = 0;
	header->exponent = 0;
	header->contributors = 0;
	header->weight = 0;
	header->incarnation = config_incarnation;
}

inline_always void write_result(struct header *header, const struct snapshot *snapshot)
{
	write_header(header, KIND_RESULT, snapshot->nonfinite ? FLAG_NONFINITE : 0);
	header->exponent = snapshot->exponent;
	header->contributors = snapshot->contributors;
	header->weight = snapshot->weight;
}

inline_always void write_redo(struct header *header, const struct snapshot *snapshot)
{
	write_header(header, KIND_RESULT, FLAG_REDO);
	header->exponent = snapshot->exponent;
}

/* Returns the sums of the words of the body, as the other short bodies do. */
inline_always __u64 write_pending(struct packet *packet, const struct snapshot *snapshot)
{
	write_header(packet->header, KIND_PENDING, 0);
#pragma unroll
	for (int i = 0; i < 4; i++)
		packet->body[i] = snapshot->seen[i];
	return short_body_sum(packet->body);
}

inline_always __u64 write_rejection(struct packet *packet, __u32 reason, const struct snapshot *snapshot)
{
	struct rejection *rejection = (struct rejection *)packet->body;
	int mismatch = reason == REASON_MISMATCH;

	write_header(packet->header, KIND_REJECT, 0);
	rejection->reason = reason;
	rejection->first_rank = mismatch ? snapshot->first_rank : 0;
	rejection->other_rank = mismatch ? snapshot->other_rank : 0;
	rejection->first_signature = mismatch ? snapshot->signature : 0;
	rejection->other_signature = mismatch ? snapshot->other_signature : 0;
	rejection->zero[0] = rejection->zero[1] = 0;
	return short_body_sum(packet->body);
}

/* From us, to be addressed: the sender's address is where it came to. */
inline_always void turn_around(const struct packet *packet)
{
	__builtin_memcpy(packet->eth->h_source, packet->eth->h_dest, ETH_ALEN);
	copy_address(source_of(packet), config_address);
	packet->udp->source = config_port;
}

inline_always void address(const struct packet *packet, const struct receiver *receiver)
{
	struct header *header = packet->header;

	__builtin_memcpy(packet->eth->h_dest, receiver->mac, ETH_ALEN);
	copy_address(destination_of(packet), packet->flow->address);
	packet->udp->dest = receiver->port;
	header->rank = receiver->rank;
	header->cookie = receiver->cookie;
	header->largest = receiver->largest;
	header->receipts = receiver->receipts;
	header->timestamp = receiver->echo;
	header->marks = receiver->marks;
}

inline_always __u16 ip_checksum(const struct iphdr *ip)
{
	const __u16 *words = (const __u16 *)ip;
	__u32 sum = 0;
#pragma unroll
	for (int i = 0; i < 10; i++)
		sum += words[i];
	return ~fold16(sum);
}

inline_always void write_ipv4(struct iphdr *ip, __u32 udp_len)
{
	ip->tos = ECN_ECT0;
	ip->tot_len = bpf_htons(sizeof(struct iphdr) + udp_len);
	ip->id = 0;
	ip->frag_off = bpf_htons(IPV4_DONT_FRAGMENT);
	ip->ttl = HOPS;
	ip->check = 0;
	ip->check = ip_checksum(ip);
}

inline_always void write_ipv6(struct ipv6hdr *ip, __u32 udp_len)
{
	/* Version, traffic class, flow label. */
	*(__u32 *)ip = bpf_htonl(6 << 28 | ECN_ECT0 << 20);
	ip->payload_len = bpf_htons(udp_len);
	ip->hop_limit = HOPS;
}

/* Lengths and checksums, once all else is written. `body_len` bytes follow the header; `body_sum` has the sums of their words. */
inline_always void seal(const struct packet *packet, __u32 body_len, __u64 body_sum)
{
	__u32 udp_len = sizeof(struct udphdr) + sizeof(struct header) + body_len;
	struct udphdr *udp = packet->udp;
	__u16 udp_checksum;
	__u64 plain;

	packet->header->checksum = checksum(packet->header, body_len, body_sum, &plain);
	if (is_bare(packet->job, packet->header))
		packet->header->checksum = 0;
	if (config_is_ipv6)
		write_ipv6(packet->ipv6, udp_len);
	else
		write_ipv4(packet->ipv4, udp_len);
	udp->len = bpf_htons(udp_len);
	plain += plain_sum(body_sum);
	plain += packet->header->checksum;
	plain += address_sum(packet) + bpf_htons(IPPROTO_UDP) + udp->len;
	udp_checksum = ~fold16(plain + udp->source + udp->dest + udp->len);
	udp->check = udp_checksum ? udp_checksum : 0xffff;
}

/* Cuts the frame after `body_len` bytes of body; the packet's pointers are not valid any more. */
inline_always int cut(struct packet *packet, __u32 body_len)
{
	int excess = full_body_len() - body_len;

	return excess ? bpf_xdp_adjust_tail(packet->ctx, -excess) : 0;
}

/* Sends the frame, with this tag, out of the interface. Not by XDP_TX, which on a veth does not wake the other end. */
inline_always int send(struct packet *packet, __u32 tag, __u32 body_len, __u32 key, __u64 flags)
{
	__u32 index = packet->job->index;
	void *copies_of_job = bpf_map_lookup_elem(&copies, &index);

	if (!copies_of_job || cut(packet, body_len) || insert_tag(packet->ctx, tag))
		return XDP_ABORTED;
	return bpf_redirect_map(copies_of_job, key, flags);
}

/* Sends the packet back to the worker that it came from. */
inline_always int reply(struct packet *packet, const struct receiver *receiver, __u32 body_len, __u64 body_sum)
{
	turn_around(packet);
	address(packet, receiver);
	seal(packet, body_len, body_sum);
	return send(packet, receiver->tag, body_len, receiver->rank, 0);
}

/* Sends copies to all workers of the job. They still have our own address as destination and no tag: the egress program
 * gives each its worker's. */
inline_always int broadcast(struct packet *packet, __u32 body_len)
{
	turn_around(packet);
	return send(packet, 0, body_len, 0, BPF_F_BROADCAST);
}

/* Counts the reason, and takes it from what the worker that is to blame may cause (WIRE H9): a bucket of tokens, kept as the
 * time at which it is full. */
inline_always int may_reject(struct packet *packet, __u32 reason)
{
	__u64 now = now_ns(), full;
	struct flow *flow = packet->flow;
	int may;

	bpf_spin_lock(&flow->lock);
	full = (flow->rejects_full > now ? flow->rejects_full : now) + REJECT_INTERVAL_NS;
	may = full - now <= (__u64)REJECT_BURST * REJECT_INTERVAL_NS;
	if (may)
		flow->rejects_full = full;
	bpf_spin_unlock(&flow->lock);
	count(packet, reason);
	count(packet, may ? COUNT_REJECT : COUNT_REJECT_LIMITED);
	return may;
}

inline_always int reject(struct packet *packet, const struct receiver *receiver, __u32 reason,
			 const struct snapshot *snapshot)
{
	if (!may_reject(packet, reason))
		return XDP_DROP;
	return reply(packet, receiver, SHORT_BODY_LEN, write_rejection(packet, reason, snapshot));
}

#endif
