/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* For tests: the port of a switch whose workers with an odd last byte of the address are in a VLAN, and the others in none.
 * Runs at the switch's end of the aggregator's link. */
#ifndef XAGG_SWITCH_H
#define XAGG_SWITCH_H

#include "xagg.h"

#define VLAN 5
#define PASS 0 /* TC_ACT_OK */
#define DROP 2 /* TC_ACT_SHOT */

/* The last byte of an IPv4 address of a UDP packet, at `offset` into the frame; -1 for other packets. */
inline_always int last_byte(struct __sk_buff *skb, __u32 offset)
{
	__u8 protocol = 0, byte = 0;

	if (bpf_skb_load_bytes(skb, ETH_HLEN + offsetof(struct iphdr, protocol), &protocol, 1) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN + offset + 3, &byte, 1))
		return -1;
	return skb->protocol == bpf_htons(ETH_P_IP) && protocol == IPPROTO_UDP ? byte : -1;
}

/* Towards the aggregator. What is not UDP stays as it is, since its kernel may know nothing of VLANs. */
SEC("tc")
int xagg_switch_push(struct __sk_buff *skb)
{
	int worker = last_byte(skb, offsetof(struct iphdr, saddr));

	if (worker > 0 && worker & 1)
		return bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), VLAN) ? DROP : PASS;
	return PASS;
}

/* From the aggregator. What has the wrong tag does not reach its worker. */
SEC("tc")
int xagg_switch_pop(struct __sk_buff *skb)
{
	int tag = skb->vlan_present ? skb->vlan_tci : 0, worker;

	if (tag && bpf_skb_vlan_pop(skb))
		return DROP;
	worker = last_byte(skb, offsetof(struct iphdr, daddr));
	if (worker < 0)
		return PASS;
	return tag == (worker & 1 ? VLAN : 0) ? PASS : DROP;
}

#endif
