/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the stages of the kernel program share: the bytes on the wire (docs/WIRE.md), the state in the maps. The Rust
 * side has the same constants in crates/xagg-wire; a test compares them. */
#ifndef XAGG_H
#define XAGG_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define inline_always static __attribute__((always_inline)) inline

#define MAX_JOBS 64 /* index 0 stands for "no job" */
#define MAX_WORKERS 256
#define MAX_WEIGHT 65535
#define MAGIC 0x4758
#define VERSION 1
#define EXPONENT_ZERO (-32768)
#define EXPONENT_MIN (-149)
#define EXPONENT_MAX 128
/* The bits of the IP header that tell of congestion (RFC 3168). */
#define ECN_MASK 3
#define ECN_ECT0 2 /* may be marked */
#define ECN_CE 3   /* is marked */
/* WIRE H9. */
#define REJECT_BURST 16
#define REJECT_INTERVAL_NS 10000000
#define BLOCK 8 /* 64-bit words a turn of the lane loops: 16 lanes */

enum kind {
	KIND_HELLO = 1,
	KIND_WELCOME = 2,
	KIND_GRADIENT = 3,
	KIND_AGGREGATE = 4,
	KIND_RESULT = 5,
	KIND_ACK = 6,
	KIND_PULL = 7,
	KIND_PENDING = 8,
	KIND_REJECT = 9,
};

enum flag {
	FLAG_ACK_REQUEST = 1,
	FLAG_NONFINITE = 2,
	FLAG_REDO = 4,
	FLAG_NO_GSO = 8,
	FLAG_NO_CHECKSUM = 16,
};

/* Indices of a job's counters. 1 to 15 are the reasons of WIRE section 6. */
enum counter {
	COUNT_PACKETS = 0,
	REASON_FRAGMENT = 1,
	REASON_LENGTH = 2,
	REASON_MAGIC = 3,
	REASON_KIND = 4,
	REASON_JOB = 5,
	REASON_WORKER = 6,
	REASON_COOKIE = 7,
	REASON_CHECKSUM = 8,
	REASON_FIELD = 9,
	REASON_INCARNATION = 10,
	REASON_NONCE = 11,
	REASON_SHAPE = 12,
	REASON_WINDOW = 13,
	REASON_MISMATCH = 14,
	REASON_CURSOR = 15,
	COUNT_ADDED = 16,
	COUNT_DUPLICATE = 17,
	COUNT_STALE = 18,
	COUNT_BROADCAST = 19,
	COUNT_REDO = 20,
	COUNT_ACK = 21,
	COUNT_PULL = 22,
	COUNT_PENDING = 23,
	COUNT_RESULT_AGAIN = 24,
	COUNT_REJECT = 25,
	COUNT_WELCOME = 26,
	COUNT_COPIES = 27,
	COUNT_REJECT_LIMITED = 28,
	COUNTERS = 48,
};

/* WIRE section 1. Little-endian, as the machines that the kernel program runs on. */
struct header {
	__u16 magic;
	__u8 version;
	__u8 kind;
	__u16 flags;
	__u16 rank;
	__u32 job;
	__u16 view;
	__u16 marks;
	__u64 cookie;
	__u64 sequence;
	__u32 packet_number;
	union {
		__u32 slot;
		__u32 largest;
	};
	__s16 exponent;
	__u16 contributors;
	union {
		__u32 weight;
		__u32 grant;
	};
	union {
		__u32 signature;
		__u32 receipts;
	};
	__u32 timestamp;
	__u32 incarnation;
	__u32 checksum;
};
_Static_assert(sizeof(struct header) == 64, "WIRE section 1");

/* The body of REJECT. */
struct rejection {
	__u32 reason;
	__u16 first_rank;
	__u16 other_rank;
	__u32 first_signature;
	__u32 other_signature;
	__u64 zero[2];
};
_Static_assert(sizeof(struct rejection) == 32, "WIRE section 1");

#define SHORT_BODY_LEN 32


struct job_key {
	__u32 job;
	__u16 view;
	__u16 zero;
};

struct job {
	__u32 index; /* into the per-job maps, from 1 */
	__u32 slots;
	__u32 workers;
	__u32 guard_bits; /* G of WIRE section 2 */
	__u32 bias;	  /* B */
	__u32 grant;	  /* what each worker may have without a receipt */
	__u32 checksum;	  /* whether packets with lanes have one */
};

/* One worker of a job. */
struct flow {
	struct bpf_spin_lock lock;
	__u32 address[4]; /* network byte order; IPv4: the first only */
	__u16 port;	  /* network byte order */
	__u8 mac[ETH_ALEN];
	__u32 tag; /* as struct packet has it; of the HELLO, like the MAC */
	__u64 cookie;
	__u64 nonce; /* 0 until HELLO */
	__u64 packets;
	__u64 sequences; /* one more than the largest added */
	__u64 last_heard; /* CLOCK_MONOTONIC_COARSE, ns */
	__u64 rejects_full; /* when it may be sent REJECT_BURST REJECTs again */
	__u32 largest;
	__u32 receipts;
	__u32 echo;
	__u32 results; /* RESULTs made for it */
	__u16 marks;   /* its packets that came with a mark of congestion */
	__u16 zero[3];
};

enum status {
	STATUS_EMPTY = 0,
	STATUS_GATHERING = 1,
	STATUS_DONE = 2,
	STATUS_MISMATCHED = 3,
};

/* One generation of a slot, beside its lanes. */
struct bank {
	__u64 sequence;
	__u64 seen[4];
	__u64 body_sum; /* the sums of the words of the body that is broadcast: checksums need no second pass over it */
	__u32 signature;
	__u32 weight;
	__u32 contributors;
	__u32 other_signature;
	__s16 exponent; /* the largest: that of the lanes */
	__s16 least_exponent;
	__u16 first_rank;
	__u16 other_rank;
	__u16 cursor; /* the next rank that a copy of the broadcast goes to */
	__u8 status;
	__u8 redo; /* in the second phase */
	__u8 nonfinite;
	__u8 zero[3];
};

struct slot {
	struct bpf_spin_lock lock;
	__u32 zero;
	struct bank banks[2];
};

/* Limits, set before loading: the verifier takes them as constants. */
extern const volatile __u32 config_lanes; /* of every packet of every job */
extern const volatile __u32 config_address[4]; /* network byte order; IPv4: the first only */
extern const volatile __u32 config_incarnation;
extern const volatile __u16 config_port; /* network byte order */
extern const volatile __u16 config_welcome_flags;
extern const volatile __u8 config_is_ipv6; /* all packets are of the version of config_address */

/* A packet on its way through the stages. Pointers into the frame are valid until its length is changed, which is last. */
struct packet {
	struct xdp_md *ctx;
	struct ethhdr *eth;
	union {
		struct iphdr *ipv4;
		struct ipv6hdr *ipv6;
	};
	struct udphdr *udp;
	struct header *header;
	__u64 *body;
	__u64 *counters;
	struct job *job;
	struct flow *flow;
	__u32 rank;
	__u32 tag; /* the four bytes of the VLAN tag that the frame came with, 0 if it had none */
	__u32 is_marked; /* with a mark of congestion */
};

/* How a stage ends: a value of enum counter that is a reason, or one of these. */
enum verdict {
	VERDICT_CONTINUE = 0,
	VERDICT_NOT_OURS = 100,
};

#ifdef XAGG_TEST
/* Tests let time pass themselves. */
__u64 test_now SEC(".data.clock");
#endif

/* Nanoseconds since some origin. */
inline_always __u64 now_ns(void)
{
#ifdef XAGG_TEST
	return test_now;
#else
	return bpf_ktime_get_coarse_ns();
#endif
}

inline_always __u32 full_body_len(void)
{
	return config_lanes << 2;
}

inline_always __u32 blocks(void)
{
	return config_lanes >> 4;
}

inline_always void count(struct packet *packet, __u32 counter)
{
	packet->counters[counter]++;
}

#endif
