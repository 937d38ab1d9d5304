//! Values whose sum over all ranks every rank can compute exactly.

/// The values of a rank: integers from -1000 to 1000, so small that the sum over 256 ranks is exact in f32.
#[must_use]
pub fn integers(rank: u16, length: usize) -> Vec<f32> {
    let value = |index: usize| ((index * 31 + usize::from(rank) * 17) % 2001) as i32 - 1000;
    (0..length).map(|index| value(index) as f32).collect()
}

/// The sum of the [`integers`] of ranks 0 to `workers` - 1.
#[must_use]
pub fn exact_sum(workers: u16, length: usize) -> Vec<f32> {
    let mut sum = vec![0.0; length];
    for rank in 0..workers {
        for (sum, value) in sum.iter_mut().zip(integers(rank, length)) {
            *sum += value;
        }
    }
    sum
}
