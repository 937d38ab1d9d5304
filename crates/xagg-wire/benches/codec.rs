//! What it costs to turn values into lanes and back, beside a mere copy of them: `cargo bench -p xagg-wire`.
//!
//! All pass over a gradient of 100 MB, fragment by fragment, as a worker does: values come from memory, packets stay in the cache.

#![allow(missing_docs, reason = "criterion's macro makes public functions")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use xagg_wire::fixed::{Format, Magnitude, dequantise, magnitude, quantise};
use xagg_wire::{Packet, full_len};

const LANES: usize = 352;
const FRAGMENTS: usize = 71_000;

fn codec(criterion: &mut Criterion) {
    let format = Format::for_workers(4).expect("in range");
    let mut values: Vec<f32> = (0..LANES * FRAGMENTS).map(|index| (index as f32).sin()).collect();
    let mut lanes = vec![0_u8; 4 * LANES];
    let Magnitude::Finite(exponent) = magnitude(&values) else { panic!("sines are finite") };
    let mut group = criterion.benchmark_group("codec");
    group.throughput(Throughput::Bytes(4 * values.len() as u64)).sample_size(20);

    let mut copy = vec![0.0_f32; LANES];
    group.bench_function("copy to a packet", |bencher| {
        bencher.iter(|| {
            values.chunks_exact(LANES).for_each(|chunk| black_box(&mut copy).copy_from_slice(chunk))
        });
    });
    group.bench_function("quantise", |bencher| {
        bencher.iter(|| {
            for chunk in values.chunks_exact(LANES) {
                if let Magnitude::Finite(exponent) = magnitude(chunk) {
                    quantise(format, exponent, chunk, black_box(&mut lanes));
                }
            }
        });
    });
    let packet = vec![1_u8; full_len(LANES)];
    group.bench_function("checksum of a packet in the cache", |bencher| {
        bencher.iter(|| {
            (0..FRAGMENTS)
                .map(|_| Packet::new_unchecked(black_box(&packet)).computed_checksum())
                .fold(0, u32::wrapping_add)
        });
    });
    group.bench_function("copy from a packet", |bencher| {
        bencher.iter(|| {
            values.chunks_exact_mut(LANES).for_each(|chunk| chunk.copy_from_slice(black_box(&copy)))
        });
    });
    group.bench_function("dequantise", |bencher| {
        bencher.iter(|| {
            for chunk in values.chunks_exact_mut(LANES) {
                dequantise(format, exponent, 4, 1, black_box(&lanes), chunk);
            }
        });
    });
    group.finish();
}

criterion_group!(benches, codec);
criterion_main!(benches);
