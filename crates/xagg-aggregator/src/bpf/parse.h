/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Stage 1: is it ours, and has it the exact length (WIRE P2)? */
#ifndef XAGG_PARSE_H
#define XAGG_PARSE_H

#include "ip.h"
#include "tag.h"

#define IPV4_MORE_FRAGMENTS 0x2000
#define IPV4_FRAGMENT_OFFSET 0x1fff
#define IPV6_FRAGMENT_OFFSET 0xfff8

/* A packet with IP options or an extension header is ours if its port is: then it is refused. */
inline_always int parse_behind(const void *header, __u32 len, const void *end)
{
	const struct udphdr *udp = header + len;

	if ((const void *)(udp + 1) > end || udp->dest != config_port)
		return VERDICT_NOT_OURS;
	return REASON_FRAGMENT;
}

inline_always int parse_ipv4(const struct packet *packet, const void *end)
{
	const struct iphdr *ip = packet->ipv4;

	if (ip->version != 4 || ip->ihl < 5 || ip->protocol != IPPROTO_UDP || !is_same_address(&ip->daddr, config_address))
		return VERDICT_NOT_OURS;
	/* Only the first fragment has ports. */
	if (ip->frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET))
		return VERDICT_NOT_OURS;
	if (ip->ihl != 5)
		return parse_behind(ip, ip->ihl * 4, end);
	if (packet->udp->dest != config_port)
		return VERDICT_NOT_OURS;
	return ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS) ? REASON_FRAGMENT : VERDICT_CONTINUE;
}

/* One extension header before UDP (RFC 8200 section 4); the frame has the first eight bytes of it. */
inline_always int parse_extension(__u8 kind, const void *header, const void *end)
{
	const struct ipv6_opt_hdr *extension = header;
	const __u16 *fragment_offset = (const void *)(extension + 1);

	if (extension->nexthdr != IPPROTO_UDP)
		return VERDICT_NOT_OURS;
	if (kind == IPPROTO_HOPOPTS || kind == IPPROTO_ROUTING || kind == IPPROTO_DSTOPTS)
		return parse_behind(header, (extension->hdrlen + 1) * 8, end);
	if (kind == IPPROTO_FRAGMENT && !(*fragment_offset & bpf_htons(IPV6_FRAGMENT_OFFSET)))
		return parse_behind(header, 8, end);
	return VERDICT_NOT_OURS;
}

inline_always int parse_ipv6(const struct packet *packet, const void *end)
{
	const struct ipv6hdr *ip = packet->ipv6;

	if (ip->version != 6 || !is_same_address(ip->daddr.s6_addr32, config_address))
		return VERDICT_NOT_OURS;
	if (ip->nexthdr != IPPROTO_UDP)
		return parse_extension(ip->nexthdr, ip + 1, end);
	return packet->udp->dest == config_port ? VERDICT_CONTINUE : VERDICT_NOT_OURS;
}

/* Whether the frame, `tag_len` bytes longer than one without a tag, is for our address and port. */
inline_always int parse_frame(struct packet *packet, __u32 tag_len)
{
	void *data = (void *)(long)packet->ctx->data + tag_len;
	void *end = (void *)(long)packet->ctx->data_end;

	if (data + header_offset() > end)
		return VERDICT_NOT_OURS;
	/* Behind the tag all is where it would be without, but for the link addresses. */
	point(packet, data);
	if (!has_our_version(packet))
		return VERDICT_NOT_OURS;
	return config_is_ipv6 ? parse_ipv6(packet, end) : parse_ipv4(packet, end);
}

/* Whether the lengths in the headers are those of a frame without a tag that is `length` long. */
inline_always int has_lengths(const struct packet *packet, __u32 length)
{
	__u16 udp_len = bpf_htons(length - udp_offset()), ip_len = bpf_htons(length - IP_OFFSET);

	if (packet->udp->len != udp_len)
		return 0;
	return config_is_ipv6 ? packet->ipv6->payload_len == udp_len : packet->ipv4->tot_len == ip_len;
}

/* Finds header and body of a frame without a tag. */
inline_always int find(struct packet *packet)
{
	void *data = (void *)(long)packet->ctx->data;
	void *end = (void *)(long)packet->ctx->data_end;
	__u32 length = frame_len() + full_body_len();
	void *limit = data + length;

	if (limit > end)
		return REASON_LENGTH;
	/* Apart, since the verifier learns nothing from one test for equality. */
	barrier_var(limit);
	if (limit < end)
		return REASON_LENGTH;
	point(packet, data);
	if (!has_lengths(packet, length))
		return REASON_LENGTH;
	packet->is_marked = (traffic_class_of(packet) & ECN_MASK) == ECN_CE;
	return VERDICT_CONTINUE;
}

/* VERDICT_NOT_OURS: not for our address and port, and untouched. */
inline_always int parse(struct packet *packet)
{
	int verdict;

	packet->tag = tag_of((void *)(long)packet->ctx->data, (void *)(long)packet->ctx->data_end);
	verdict = packet->tag ? parse_frame(packet, TAG_LEN) : parse_frame(packet, 0);
	if (verdict != VERDICT_CONTINUE)
		return verdict;
	if (packet->tag && remove_tag(packet->ctx))
		return REASON_LENGTH;
	return find(packet);
}

#endif
