//! Map values as bytes and back.

use super::skeleton::types;

/// Plain data without padding: every bit pattern is a value, every byte is initialised.
///
/// # Safety
/// Only for `repr(C)` structs of integers whose members leave no gap.
pub(super) unsafe trait Plain: Copy + Default {}

// SAFETY: integers only, and xagg.h orders them so that they leave no gap.
unsafe impl Plain for types::job_key {}
// SAFETY: as above.
unsafe impl Plain for types::job {}
// SAFETY: as above.
unsafe impl Plain for types::flow {}
// SAFETY: as above.
unsafe impl Plain for types::slot {}
// SAFETY: as above.
unsafe impl Plain for libbpf_rs::libbpf_sys::bpf_devmap_val {}

/// The bytes of a value.
pub(super) fn bytes<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: `Plain` values have no uninitialised byte, and the slice covers exactly the value.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The value in the bytes; zeros where there are too few.
pub(super) fn read<T: Plain>(bytes: &[u8]) -> T {
    let mut value = T::default();
    let len = bytes.len().min(size_of::<T>());
    // SAFETY: any bytes make a `Plain` value, and `len` is within both.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), std::ptr::from_mut(&mut value).cast(), len) };
    value
}
