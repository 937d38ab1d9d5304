//! The golden vectors in `vectors/`, which any language can read: fields and bytes of packets, what values become, what sums
//! become. Integers of 64 bits and bit patterns are hexadecimal strings, so that no reader rounds them.
//! `XAGG_WRITE_VECTORS=1 cargo test -p xagg-wire --test vectors` writes them anew, which is a change of the wire.

mod common;

use common::{gather, lanes_of, own_exponent};
use serde_json::{Value, json};
use xagg_wire::fixed::{Exponent, Format, Magnitude, dequantise, magnitude, write_lanes};
use xagg_wire::repr::{Contribution, Rejection};
use xagg_wire::{Cookie, Flow, Kind, Operation, Packet, Reason, Receipts, Reduction, Repr, full_len};

const LANES: usize = 16;
const SECRET: &str = "a secret for vectors";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn flow() -> Flow {
    let (job, view, rank) = (7, 2, 3);
    Flow { job, view, rank, cookie: Cookie::derive(SECRET, job, view, rank), incarnation: 0xcafe_f00d }
}

fn packets() -> Vec<(&'static str, Repr)> {
    let exponent = Exponent::finite(-3).expect("legal");
    let receipts = Receipts { largest: 40, bitmap: 0b1011, echo: 123_456, marks: 0x0708 };
    let contribution = Contribution {
        sequence: 1_000_003,
        slot: 3,
        packet_number: 41,
        redo: false,
        nonfinite: false,
        ack_request: true,
        exponent,
        contributors: 1,
        weight: 2,
        signature: 0xdead_beef,
        timestamp: 123_999,
    };
    let rejection = Rejection {
        sequence: 7,
        reason: Reason::Mismatch,
        first_rank: 0,
        other_rank: 3,
        first_signature: 0x1111_1111,
        other_signature: 0x2222_2222,
    };
    let result = |nonfinite, exponent| Repr::Result {
        sequence: 1_000_003,
        packet_number: 39,
        nonfinite,
        exponent,
        contributors: 4,
        weight: 8,
        receipts,
    };
    vec![
        ("hello", Repr::Hello { nonce: 0x0102_0304_0506_0708, slots: 1_000_000, workers: 4, checksum: true }),
        ("welcome", Repr::Welcome { nonce: 0x0102_0304_0506_0708, no_gso: true, grant: 64 }),
        ("gradient", Repr::Gradient(contribution)),
        ("gradient_redo", Repr::Gradient(Contribution { redo: true, ack_request: false, ..contribution })),
        (
            "gradient_nonfinite",
            Repr::Gradient(Contribution { nonfinite: true, exponent: Exponent::ZERO, ..contribution }),
        ),
        ("aggregate", Repr::Aggregate(Contribution { contributors: 3, weight: 6, ..contribution })),
        ("result", result(false, exponent)),
        ("result_nonfinite", result(true, Exponent::ZERO)),
        ("redo", Repr::Redo { sequence: 1_000_003, packet_number: 39, exponent, receipts }),
        ("ack", Repr::Ack { receipts }),
        ("pull", Repr::Pull { sequence: 1_000_003, slot: 3, redo: true, timestamp: 124_000 }),
        ("pending", Repr::Pending { sequence: 1_000_003, seen: [0b1101, 0, 0, 1 << 63], receipts }),
        ("reject", Repr::Reject(rejection)),
    ]
}

/// The header as WIRE section 1 lists it; fields that share a place have both names.
fn header(packet: &Packet<&[u8]>, kind: Kind) -> Value {
    json!({
        "kind": kind as u8,
        "flags": packet.flags().to_wire(),
        "rank": packet.rank(),
        "job": packet.job(),
        "view": packet.view(),
        "cookie": format!("{:016x}", packet.cookie()),
        "sequence": format!("{:016x}", packet.sequence()),
        "packet_number": packet.packet_number(),
        "slot_or_largest": packet.slot(),
        "exponent": packet.exponent(),
        "contributors": packet.contributors(),
        "weight": packet.weight(),
        "signature_or_receipts": format!("{:08x}", packet.signature()),
        "timestamp_or_echo": packet.timestamp(),
        "incarnation": format!("{:08x}", packet.incarnation()),
        "checksum": format!("{:08x}", packet.checksum()),
    })
}

/// The body in words, by kind.
fn body(repr: &Repr, bytes: &[u8]) -> Value {
    match repr {
        Repr::Pending { seen, .. } => {
            let is_seen = |rank: &usize| seen[rank / 64] >> (rank % 64) & 1 == 1;
            json!({ "ranks_seen": (0..256).filter(is_seen).collect::<Vec<usize>>() })
        }
        Repr::Reject(rejection) => json!({
            "reason": rejection.reason as u8,
            "first_rank": rejection.first_rank,
            "other_rank": rejection.other_rank,
            "first_signature": format!("{:08x}", rejection.first_signature),
            "other_signature": format!("{:08x}", rejection.other_signature),
        }),
        _ if bytes.is_empty() => json!({}),
        _ => json!({ "lanes": patterns(numbers(bytes)) }),
    }
}

fn numbers(lanes: &[u8]) -> Vec<u32> {
    lanes.as_chunks::<4>().0.iter().map(|lane| u32::from_le_bytes(*lane)).collect()
}

fn packet_vector(name: &str, repr: &Repr) -> Value {
    let (kind, _) = repr.kind_and_flags();
    // Who says HELLO does not know the incarnation.
    let flow = if kind == Kind::Hello { Flow { incarnation: 0, ..flow() } } else { flow() };
    let mut bytes = vec![0; repr.len(LANES)];
    let has_lanes = matches!(kind, Kind::Gradient | Kind::Aggregate | Kind::Result);
    if has_lanes && bytes.len() == full_len(LANES) {
        for (lane, bytes) in (0..).zip(bytes[64..].as_chunks_mut::<4>().0) {
            *bytes = (lane * 65_537_u32).to_le_bytes();
        }
    }
    repr.emit(&flow, &mut Packet::new_unchecked(&mut bytes), true);
    if kind == Kind::Ack {
        // An ACK has the sequence that led to it; it is not part of what the ACK says, since receipts go by packet numbers.
        let mut packet = Packet::new_unchecked(&mut bytes);
        packet.set_sequence(1_000_003);
        packet.fill_checksum();
    }
    let packet = Packet::new_unchecked(&bytes[..]);
    assert_eq!(Repr::parse(&packet, LANES, true), Ok((flow, *repr)), "{name}");
    json!({
        "name": name,
        "header": header(&packet, kind),
        "body": body(repr, packet.body()),
        "bytes": hex(&bytes),
    })
}

fn packet_vectors() -> Value {
    let operation = Operation { index: 5, length: 1000, reduction: Reduction::Mean };
    let Flow { job, view, rank, cookie, .. } = flow();
    let packets = packets();
    json!({
        "lanes": LANES,
        "cookie": { "secret": SECRET, "job": job, "view": view, "rank": rank, "value": format!("{:016x}", cookie.to_wire()) },
        "signature": { "index": 5, "length": 1000, "dtype": 0, "reduction": 1, "value": format!("{:08x}", operation.signature()) },
        "packets": packets.iter().map(|(name, repr)| packet_vector(name, repr)).collect::<Vec<_>>(),
    })
}

/// Lanes or f32 as bit patterns.
fn patterns(words: impl IntoIterator<Item = u32>) -> String {
    words.into_iter().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(" ")
}

fn bits(values: &[f32]) -> String {
    patterns(values.iter().map(|value| value.to_bits()))
}

fn fragment_vector(format: Format, values: &[f32]) -> Value {
    let (exponent, nonfinite) = match magnitude(values) {
        Magnitude::Finite(exponent) => (exponent, false),
        Magnitude::Zero => (Exponent::ZERO, false),
        Magnitude::Nonfinite => (Exponent::ZERO, true),
    };
    // One lane more than values: the tail is shown as well.
    let lanes = lanes_of(format, exponent, values, values.len() + 1);
    let mut back = vec![0.0; values.len()];
    dequantise(format, exponent, 1, 1, &lanes, &mut back);
    json!({
        "values": bits(values),
        "nonfinite": nonfinite,
        "exponent": exponent.to_wire(),
        "lanes": patterns(numbers(&lanes)),
        "back_from_one_contribution": bits(&back),
    })
}

/// Workers whose exponents are `step` apart, summed.
fn sum_vector(workers: usize, step: i32) -> Value {
    let format = Format::for_workers(workers).expect("in range");
    let fragment = |rank: usize| -> Vec<f32> {
        let scale = 2.0_f32.powi(-step * (rank % 3) as i32);
        [1.0, -0.7, 0.123_456_79, 0.0]
            .into_iter()
            .map(|value| value * scale * (1.0 - rank as f32 / 700.0))
            .collect()
    };
    let fragments: Vec<Vec<f32>> = (0..workers).map(fragment).collect();
    let order: Vec<usize> = (0..workers).collect();
    let gathered = gather(format, &fragments, &order, fragments[0].len());
    let mut lanes = vec![0; 4 * gathered.bank.len()];
    write_lanes(&gathered.bank, &mut lanes);
    let result = |divisor| {
        let mut values = vec![0.0; gathered.bank.len()];
        dequantise(format, gathered.exponent, workers as u32, divisor, &lanes, &mut values);
        bits(&values)
    };
    json!({
        "workers": workers,
        "values": fragments.iter().map(|values| bits(values)).collect::<Vec<_>>(),
        "exponents": fragments.iter().map(|values| own_exponent(values).to_wire()).collect::<Vec<_>>(),
        "redo": gathered.redone,
        "exponent": gathered.exponent.to_wire(),
        "lanes": patterns(gathered.bank.iter().copied()),
        "sum": result(1),
        "divided_by_7": result(7),
    })
}

fn fixed_vectors() -> Value {
    let fragments: [&[f32]; 7] = [
        &[0.0, -0.0],
        &[1.0, -1.0, 0.5, 3.0e-3],
        &[1.0e-10, -2.5e-10, 3.0e-12],
        &[f32::MAX, f32::MIN, 1.0],
        &[f32::from_bits(1), f32::from_bits(0x7f_ffff), f32::MIN_POSITIVE],
        &[0.999_999_94, -1.0 / 3.0],
        &[f32::NAN, 1.0],
    ];
    let formats = [1, 4, 16, 256].map(|workers| {
        let format = Format::for_workers(workers).expect("in range");
        json!({
            "workers": workers,
            "value_bits": format.value_bits(),
            "guard_bits": format.guard_bits(),
            "fragments": fragments.map(|values| fragment_vector(format, values)),
        })
    });
    // With steps of 5 the exponents of three workers are further apart than the guard bits.
    let sums =
        [(1, 0), (3, 0), (3, 2), (3, 5), (17, 2), (17, 5)].map(|(workers, step)| sum_vector(workers, step));
    json!({ "formats": formats, "sums": sums })
}

fn check(file: &str, computed: &Value) {
    let path = format!("{}/vectors/{file}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("XAGG_WRITE_VECTORS").is_some() {
        let text = serde_json::to_string_pretty(computed).expect("JSON") + "\n";
        std::fs::write(&path, text).expect("writes");
    }
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let golden: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert!(golden == *computed, "{path} differs from what this code writes: the wire has changed");
}

#[test]
fn packets_are_those_of_the_golden_file() {
    check("packets.json", &packet_vectors());
}

#[test]
fn lanes_are_those_of_the_golden_file() {
    check("fixed.json", &fixed_vectors());
}
