//! Map values as bytes and back.

use std::net::IpAddr;

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

/// An address as the kernel program has it: in network byte order, and IPv4 only in the first word.
pub(super) fn address(address: IpAddr) -> [u32; 4] {
    match address {
        IpAddr::V4(address) => [u32::from_ne_bytes(address.octets()), 0, 0, 0],
        IpAddr::V6(address) => {
            let words = address.octets();
            std::array::from_fn(|word| u32::from_ne_bytes(words.as_chunks().0[word]))
        }
    }
}

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
