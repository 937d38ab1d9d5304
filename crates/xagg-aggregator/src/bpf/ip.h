/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What depends on the version of IP: where things are in a frame without a VLAN tag, and its addresses. The version is a
 * constant, so the verifier removes the code of the other one. */
#ifndef XAGG_IP_H
#define XAGG_IP_H

#include "xagg.h"

#define IP_OFFSET sizeof(struct ethhdr)

inline_always __u32 udp_offset(void)
{
	return IP_OFFSET + (config_is_ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
}

inline_always __u32 header_offset(void)
{
	return udp_offset() + sizeof(struct udphdr);
}

/* The length of a frame up to the body. */
inline_always __u32 frame_len(void)
{
	return header_offset() + sizeof(struct header);
}

/* Sets the pointers of a frame that begins at `data` and is known to be long enough. */
inline_always void point(struct packet *packet, void *data)
{
	packet->eth = data;
	packet->ipv4 = data + IP_OFFSET;
	packet->udp = data + udp_offset();
	packet->header = (void *)(packet->udp + 1);
	packet->body = (void *)(packet->header + 1);
}

inline_always int has_our_version(const struct packet *packet)
{
	return packet->eth->h_proto == (config_is_ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP));
}

inline_always __u32 *source_of(const struct packet *packet)
{
	return config_is_ipv6 ? packet->ipv6->saddr.s6_addr32 : &packet->ipv4->saddr;
}

inline_always __u32 *destination_of(const struct packet *packet)
{
	return config_is_ipv6 ? packet->ipv6->daddr.s6_addr32 : &packet->ipv4->daddr;
}

inline_always int is_same_address(const __u32 *one, const volatile __u32 *other)
{
	if (!config_is_ipv6)
		return one[0] == other[0];
	return one[0] == other[0] && one[1] == other[1] && one[2] == other[2] && one[3] == other[3];
}

inline_always void copy_address(__u32 *to, const volatile __u32 *from)
{
	to[0] = from[0];
	if (config_is_ipv6) {
		to[1] = from[1];
		to[2] = from[2];
		to[3] = from[3];
	}
}

inline_always __u8 traffic_class_of(const struct packet *packet)
{
	if (config_is_ipv6)
		return packet->ipv6->priority << 4 | packet->ipv6->flow_lbl[0] >> 4;
	return packet->ipv4->tos;
}

/* The words of both addresses, for the checksum of UDP. */
inline_always __u64 address_sum(const struct packet *packet)
{
	const __u32 *source = source_of(packet), *destination = destination_of(packet);
	__u64 sum = (__u64)source[0] + destination[0];

	if (config_is_ipv6)
		sum += (__u64)source[1] + source[2] + source[3] + destination[1] + destination[2] + destination[3];
	return sum;
}

#endif
