/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Faults of one direction of a link, at the switch's port (tc, direct action). */

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define MILLION 1000000
#define MAX_FLIPS 16

/* Of the port. */
const volatile __u32 config_port;
/* BPF_F_INGRESS for what the node sends, 0 for what is sent to it. */
const volatile __u32 config_redirect_flags;
/* Marks frames that have been here, also copies and what comes back from the side path; each direction has its own. */
const volatile __u32 config_seen;

/* In the order of `Faults::to_words` in faults.rs. Shares are in millionths. */
struct settings {
	__u64 drop;
	__u64 burst_enter;
	__u64 burst_leave;
	__u64 duplicate;
	__u64 flip_headers;
	__u64 flip_payload;
	__u64 flip_bits;
	__u64 reorder;
	__u64 side_path; /* the interface that holds frames back */
	__u64 congest;
	__u64 mark_picoseconds_per_byte; /* 0: no queue */
	__u64 mark_nanoseconds; /* a longer queue is congested */
};

/* In the order of `Done::from_words` in faults.rs. */
struct done {
	__u64 frames;
	__u64 dropped;
	__u64 dropped_in_bursts;
	__u64 duplicated;
	__u64 flipped;
	__u64 reordered;
	__u64 congested;
};

struct state {
	struct bpf_spin_lock lock;
	__u32 in_burst;
	__u64 queue_empty_at; /* in the clock's nanoseconds */
};

#define ONE(name_, value_) \
	struct { \
		__uint(type, BPF_MAP_TYPE_ARRAY); \
		__uint(max_entries, 1); \
		__type(key, __u32); \
		__type(value, value_); \
	} name_ SEC(".maps")

ONE(fault_settings, struct settings);
ONE(fault_counts, struct done);
ONE(fault_state, struct state);

#define COUNT(field_) __sync_fetch_and_add(&(field_), 1)

static __always_inline int chance(__u64 share)
{
	return share && bpf_get_prandom_u32() % MILLION < share;
}

/* Gilbert and Elliott: two states, and everything is lost in one of them. */
static __always_inline int in_burst(struct state *state, const struct settings *settings)
{
	if (!settings->burst_enter)
		return 0;
	if (state->in_burst)
		state->in_burst = !chance(settings->burst_leave);
	else
		state->in_burst = chance(settings->burst_enter);
	return state->in_burst;
}

/* Whether a bottleneck of the rate that lies ahead would have a queue longer than the threshold by now. */
static __always_inline int queue_is_long(struct state *state, const struct settings *settings, __u32 len)
{
	__u64 now = bpf_ktime_get_ns(), wait;

	if (!settings->mark_picoseconds_per_byte)
		return 0;
	bpf_spin_lock(&state->lock);
	if (state->queue_empty_at < now)
		state->queue_empty_at = now;
	wait = state->queue_empty_at - now;
	state->queue_empty_at += len * settings->mark_picoseconds_per_byte / 1000;
	bpf_spin_unlock(&state->lock);
	return wait > settings->mark_nanoseconds;
}

/* The length of the headers up to and with UDP's; 0 for what is not UDP or has options. */
static __always_inline __u32 udp_headers(struct __sk_buff *skb)
{
	__u32 len;
	__u8 protocol;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		len = ETH_HLEN + sizeof(struct iphdr);
		if (bpf_skb_load_bytes(skb, ETH_HLEN + 9, &protocol, 1))
			return 0;
	} else {
		len = ETH_HLEN + sizeof(struct ipv6hdr);
		if (bpf_skb_load_bytes(skb, ETH_HLEN + 6, &protocol, 1))
			return 0;
	}
	return protocol == IPPROTO_UDP ? len + sizeof(struct udphdr) : 0;
}

static __always_inline int flip_one(struct __sk_buff *skb, __u32 from, __u32 to)
{
	__u32 random = bpf_get_prandom_u32(), offset = from + bpf_get_prandom_u32() % (to - from);
	__u8 byte;

	if (bpf_skb_load_bytes(skb, offset, &byte, 1))
		return -1;
	byte ^= 1 << (random & 7);
	/* No checksum is put right: that is the point. */
	return bpf_skb_store_bytes(skb, offset, &byte, 1, 0);
}

/* Flips 1 to `flip_bits` bits between two offsets. */
static __always_inline int flip(struct __sk_buff *skb, const struct settings *settings, __u32 from, __u32 to)
{
	__u32 bits = 1;

	if (from >= to)
		return 0;
	if (settings->flip_bits > 1)
		bits += bpf_get_prandom_u32() % (__u32)settings->flip_bits;
	for (__u32 i = 0; i < MAX_FLIPS && i < bits; i++)
		if (flip_one(skb, from, to))
			return 0;
	return 1;
}

static __always_inline void damage(struct __sk_buff *skb, const struct settings *settings, struct done *done)
{
	__u32 headers = udp_headers(skb);
	int flipped = 0;

	if (!headers)
		return;
	if (chance(settings->flip_headers))
		flipped += flip(skb, settings, 0, headers);
	if (chance(settings->flip_payload))
		flipped += flip(skb, settings, headers, skb->len);
	if (flipped)
		COUNT(done->flipped);
}

/* ARP is spared: the kernel asks again only after a second, which would hide what is to be tested. So is multicast. */
static __always_inline int is_spared(struct __sk_buff *skb)
{
	__u8 destination;

	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return 1;
	return bpf_skb_load_bytes(skb, 0, &destination, 1) || destination & 1;
}

SEC("tc")
int xagg_faults(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct settings *settings = bpf_map_lookup_elem(&fault_settings, &zero);
	struct done *done = bpf_map_lookup_elem(&fault_counts, &zero);
	struct state *state = bpf_map_lookup_elem(&fault_state, &zero);

	if (!settings || !done || !state || skb->mark == config_seen || is_spared(skb))
		return TC_ACT_UNSPEC;
	COUNT(done->frames);
	if (chance(settings->drop)) {
		COUNT(done->dropped);
		return TC_ACT_SHOT;
	}
	if (in_burst(state, settings)) {
		COUNT(done->dropped_in_bursts);
		return TC_ACT_SHOT;
	}
	if (queue_is_long(state, settings, skb->len) || chance(settings->congest)) {
		if (bpf_skb_ecn_set_ce(skb))
			COUNT(done->congested);
	}
	skb->mark = config_seen;
	if (chance(settings->duplicate) && !bpf_clone_redirect(skb, config_port, config_redirect_flags))
		COUNT(done->duplicated);
	damage(skb, settings, done);
	if (settings->side_path && chance(settings->reorder)) {
		COUNT(done->reordered);
		return bpf_redirect(settings->side_path, 0);
	}
	return TC_ACT_UNSPEC;
}

/* Where the side path ends: the frame goes on where it was taken out. */
SEC("tc")
int xagg_faults_back(struct __sk_buff *skb)
{
	skb->mark = config_seen;
	return bpf_redirect(config_port, config_redirect_flags);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
