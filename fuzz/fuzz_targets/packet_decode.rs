//! Any bytes are a packet or an error, and what is read is written back the same (WIRE P5).
#![no_main]

use libfuzzer_sys::fuzz_target;
use xagg_wire::{Packet, Repr};

const LANES: usize = 16;

fuzz_target!(|input: &[u8]| {
    let mut bytes = input.to_vec();
    if bytes.len() >= 64 {
        // A fuzzer does not guess checksums.
        Packet::new_unchecked(&mut bytes).fill_checksum();
    }
    let Ok((flow, repr)) = Repr::parse(&Packet::new_unchecked(&bytes), LANES, true) else { return };
    let mut again = vec![0; repr.len(LANES)];
    let body = bytes.len().min(again.len());
    again[64..body].copy_from_slice(&bytes[64..body]);
    repr.emit(&flow, &mut Packet::new_unchecked(&mut again), true);
    assert_eq!(Repr::parse(&Packet::new_unchecked(&again), LANES, true), Ok((flow, repr)));
});
