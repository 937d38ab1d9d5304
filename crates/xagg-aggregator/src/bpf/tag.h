/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* One VLAN tag (802.1Q) is taken off a frame that is ours, and put onto an answer: all stages between see none. */
#ifndef XAGG_TAG_H
#define XAGG_TAG_H

#include "xagg.h"

#define TAG_OFFSET (2 * ETH_ALEN)
#define TAG_LEN 4

/* Both link addresses. */
struct link {
	__u64 first;
	__u32 rest;
} __attribute__((packed));
_Static_assert(sizeof(struct link) == TAG_OFFSET, "two addresses");

/* The tag of the frame that begins at `data`, 0 if it has none. */
inline_always __u32 tag_of(void *data, void *end)
{
	struct ethhdr *eth = data;
	__u32 *tag = data + TAG_OFFSET;

	if (data + TAG_OFFSET + TAG_LEN > end || eth->h_proto != bpf_htons(ETH_P_8021Q))
		return 0;
	return *tag;
}

/* Cuts the tag out of the frame; 0, or an error. Pointers into the frame are not valid any more. */
inline_always int remove_tag(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct link link;

	if (data + TAG_OFFSET + TAG_LEN > end)
		return -1;
	link = *(struct link *)data;
	*(struct link *)(data + TAG_LEN) = link;
	return bpf_xdp_adjust_head(ctx, TAG_LEN);
}

/* Makes room for a tag and writes it, unless it is 0; 0, or an error. Pointers into the frame are not valid any more. */
inline_always int insert_tag(struct xdp_md *ctx, __u32 tag)
{
	void *data, *end;
	struct link link;

	if (!tag)
		return 0;
	if (bpf_xdp_adjust_head(ctx, -TAG_LEN))
		return -1;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + TAG_OFFSET + TAG_LEN > end)
		return -1;
	link = *(struct link *)(data + TAG_LEN);
	*(struct link *)data = link;
	*(__u32 *)(data + TAG_OFFSET) = tag;
	return 0;
}

#endif
