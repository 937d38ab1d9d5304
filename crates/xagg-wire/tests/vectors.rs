//! The golden vectors in `vectors/`, which any language can read: what each packet says and its bytes, what values become.
//! `XAGG_WRITE_VECTORS=1 cargo test -p xagg-wire --test vectors` writes them anew, which is a change of the wire.

use serde_json::{Value, json};
use xagg_wire::fixed::{Exponent, Format, Magnitude, dequantise, magnitude, quantise};
use xagg_wire::repr::{Contribution, Rejection};
use xagg_wire::{Cookie, Flow, Operation, Packet, Reason, Receipts, Reduction, Repr, full_len};

const LANES: usize = 16;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn packets() -> Vec<(&'static str, Repr)> {
    let exponent = Exponent::finite(-3).expect("legal");
    let receipts = Receipts { largest: 40, bitmap: 0b1011, echo: 123_456 };
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
    vec![
        ("hello", Repr::Hello { nonce: 0x0102_0304_0506_0708, slots: 1_000_000, workers: 4 }),
        ("welcome", Repr::Welcome { nonce: 0x0102_0304_0506_0708, no_gso: true }),
        ("gradient", Repr::Gradient(contribution)),
        ("gradient_redo", Repr::Gradient(Contribution { redo: true, ack_request: false, ..contribution })),
        (
            "gradient_nonfinite",
            Repr::Gradient(Contribution { nonfinite: true, exponent: Exponent::ZERO, ..contribution }),
        ),
        ("aggregate", Repr::Aggregate(Contribution { contributors: 3, weight: 6, ..contribution })),
        (
            "result",
            Repr::Result {
                sequence: 1_000_003,
                packet_number: 39,
                nonfinite: false,
                exponent,
                contributors: 4,
                weight: 8,
                receipts,
            },
        ),
        ("redo", Repr::Redo { sequence: 1_000_003, packet_number: 39, exponent, receipts }),
        ("ack", Repr::Ack { receipts }),
        ("pull", Repr::Pull { sequence: 1_000_003, slot: 3, redo: true, timestamp: 124_000 }),
        ("pending", Repr::Pending { sequence: 1_000_003, seen: [0b1101, 0, 0, 1 << 63], receipts }),
        ("reject", Repr::Reject(rejection)),
    ]
}

fn packet_vectors() -> Value {
    let flow = Flow {
        job: 7,
        view: 2,
        rank: 3,
        cookie: Cookie::derive("a secret for vectors", 7, 2, 3),
        incarnation: 0xcafe_f00d,
    };
    let vector = |(name, repr): (&str, Repr)| {
        let mut bytes = vec![0; repr.len(LANES)];
        let body_is_lanes = bytes.len() == full_len(LANES);
        if body_is_lanes {
            // Lanes 0, 1, 2, ... times 65537.
            for (lane, bytes) in bytes[64..].as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *bytes = (lane as u32 * 65_537).to_le_bytes();
            }
        }
        repr.emit(&flow, &mut Packet::new_unchecked(&mut bytes));
        let read = Repr::parse(&Packet::new_unchecked(&bytes), LANES);
        assert_eq!(read, Ok((flow, repr)), "{name}");
        json!({ "name": name, "says": format!("{repr:?}"), "bytes": hex(&bytes) })
    };
    let operation = Operation { index: 5, length: 1000, reduction: Reduction::Mean };
    json!({
        "lanes": LANES,
        "flow": { "job": 7, "view": 2, "rank": 3, "incarnation": 0xcafe_f00d_u32 },
        "cookie": { "secret": "a secret for vectors", "value": format!("{:016x}", flow.cookie.to_wire()) },
        "signature": { "index": 5, "length": 1000, "dtype": 0, "reduction": 1, "value": format!("{:08x}", operation.signature()) },
        "packets": packets().into_iter().map(vector).collect::<Vec<_>>(),
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
    let mut vectors = vec![];
    for workers in [1, 4, 16, 256] {
        let format = Format::for_workers(workers).expect("in range");
        for values in fragments {
            let (exponent, nonfinite) = match magnitude(values) {
                Magnitude::Finite(exponent) => (exponent, false),
                Magnitude::Zero => (Exponent::ZERO, false),
                Magnitude::Nonfinite => (Exponent::ZERO, true),
            };
            let mut lanes = vec![0; 4 * LANES];
            quantise(format, exponent, values, &mut lanes);
            let mut back = vec![0.0; values.len()];
            dequantise(format, exponent, 1, 1, &lanes, &mut back);
            let bits = |values: &[f32]| -> Vec<String> {
                values.iter().map(|v| format!("{:08x}", v.to_bits())).collect()
            };
            vectors.push(json!({
                "workers": workers,
                "value_bits": format.value_bits(),
                "guard_bits": format.guard_bits(),
                "values": bits(values),
                "nonfinite": nonfinite,
                "exponent": exponent.to_wire(),
                "lanes": lanes.as_chunks::<4>().0.iter().map(|lane| u32::from_le_bytes(*lane)).collect::<Vec<_>>(),
                "back_from_one_contribution": bits(&back),
            }));
        }
    }
    Value::Array(vectors)
}

fn check(file: &str, computed: &Value) {
    let path = format!("{}/vectors/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = serde_json::to_string_pretty(computed).expect("JSON") + "\n";
    if std::env::var_os("XAGG_WRITE_VECTORS").is_some() {
        std::fs::write(&path, &text).expect("writes");
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert!(golden == text, "{path} differs from what this code writes: the wire has changed");
}

#[test]
fn packets_are_those_of_the_golden_file() {
    check("packets.json", &packet_vectors());
}

#[test]
fn lanes_are_those_of_the_golden_file() {
    check("fixed.json", &fixed_vectors());
}
