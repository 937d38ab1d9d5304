/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The kernel program: sums gradients before the network stack sees them. The way of a packet is the body of xagg(). */
#include "answer.h"
#include "egress.h"
#include "parse.h"

const volatile __u32 config_lanes = 16;
const volatile __u32 config_address[4];
const volatile __u32 config_incarnation;
const volatile __u16 config_port;
const volatile __u16 config_welcome_flags;
const volatile __u8 config_is_ipv6;

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* The one place where a refusal is counted that belongs to no job, or to a job whose worker was not admitted. */
inline_always int refuse(struct packet *packet, __u32 reason)
{
	if (!packet->counters)
		packet->counters = counters_of(0);
	if (packet->counters)
		count(packet, reason);
	return XDP_DROP;
}

SEC("xdp")
int xagg(struct xdp_md *ctx)
{
	struct packet packet = { .ctx = ctx };
	int verdict = parse(&packet);

	if (verdict == VERDICT_NOT_OURS)
		return XDP_PASS;
	if (verdict == VERDICT_CONTINUE)
		verdict = admit(&packet);
	if (verdict != VERDICT_CONTINUE)
		return refuse(&packet, verdict);
	if (packet.header->kind == KIND_HELLO)
		return answer_hello(&packet);
	return answer_fragment(&packet);
}

SEC("xdp/devmap")
int xagg_egress(struct xdp_md *ctx)
{
	return send_copy(ctx);
}

/* Sends what it is given through the broadcast map of "no job": the loader's proof that copies really leave. */
SEC("xdp")
int xagg_probe(struct xdp_md *ctx)
{
	__u32 index = 0;
	void *copies_of_job = bpf_map_lookup_elem(&copies, &index);

	return copies_of_job ? bpf_redirect_map(copies_of_job, 0, BPF_F_BROADCAST) : XDP_ABORTED;
}

#ifdef XAGG_TEST
#include "switch.h"

/* A program for a devmap cannot be test-run; this is the same as an ordinary one. */
SEC("xdp")
int xagg_egress_run(struct xdp_md *ctx)
{
	return send_copy(ctx);
}
#endif
