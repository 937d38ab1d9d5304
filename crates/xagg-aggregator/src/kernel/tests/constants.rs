//! The constants of the C side are those of the Rust side.

use std::collections::HashMap;

use xagg_proto::aggregator::MAX_JOBS;
use xagg_wire::counter::COUNTERS;
use xagg_wire::fixed::Exponent;
use xagg_wire::packet::{MAGIC, VERSION};
use xagg_wire::repr::MAX_WEIGHT;
use xagg_wire::{Counter, Flags, Kind, MAX_WORKERS, REJECT_BURST, REJECT_INTERVAL, Reason, SHORT_BODY_LEN};

use super::super::FLOWS_PER_JOB;

/// All `NAME = value,` and `#define NAME value` of a header whose value is a number.
fn constants() -> HashMap<String, i64> {
    let number = |text: &str| {
        let text = text.split(',').next()?.split("/*").next()?.trim().trim_matches(['(', ')']);
        let hex = text.strip_prefix("0x").map(|digits| i64::from_str_radix(digits, 16).ok());
        hex.unwrap_or_else(|| text.parse().ok())
    };
    let of_line = |line: &str| {
        let line = line.trim();
        let (name, value) = match line.strip_prefix("#define ") {
            Some(definition) => definition.split_once(' ')?,
            None => line.split_once('=')?,
        };
        Some((name.trim().to_owned(), number(value)?))
    };
    include_str!("../../bpf/xagg.h").lines().filter_map(of_line).collect()
}

#[test]
fn constants_are_those_of_the_wire() {
    let constants = constants();
    let value = |name: &str| *constants.get(name).unwrap_or_else(|| panic!("{name} is not in xagg.h"));
    assert_eq!(value("MAGIC"), i64::from(MAGIC));
    assert_eq!(value("VERSION"), i64::from(VERSION));
    assert_eq!(value("MAX_WORKERS"), MAX_WORKERS as i64);
    assert_eq!(value("MAX_WORKERS"), i64::from(FLOWS_PER_JOB));
    assert_eq!(value("MAX_JOBS"), MAX_JOBS as i64 + 1, "index 0 is no job's");
    assert_eq!(value("SHORT_BODY_LEN"), SHORT_BODY_LEN as i64);
    assert_eq!(value("MAX_WEIGHT"), i64::from(MAX_WEIGHT));
    assert_eq!(value("REJECT_BURST"), i64::from(REJECT_BURST));
    assert_eq!(value("REJECT_INTERVAL_NS"), REJECT_INTERVAL.as_nanos() as i64);
    assert_eq!(value("COUNTERS"), COUNTERS as i64);
    assert_eq!(value("EXPONENT_ZERO"), i64::from(Exponent::ZERO.to_wire()));
    assert_eq!(value("EXPONENT_MIN"), i64::from(Exponent::MIN));
    assert_eq!(value("EXPONENT_MAX"), i64::from(Exponent::MAX));
    for reason in Reason::ALL {
        assert_eq!(value(&format!("REASON_{}", reason.name().to_uppercase())), *reason as i64);
    }
    let kinds: Vec<_> = (0..=u8::MAX).filter_map(Kind::from_wire).collect();
    assert_eq!(constants.keys().filter(|name| name.starts_with("KIND_")).count(), kinds.len());
    for kind in kinds {
        assert_eq!(value(&format!("KIND_{}", format!("{kind:?}").to_uppercase())), kind as i64);
    }
    let flags = [("ACK_REQUEST", Flags::ACK_REQUEST), ("NONFINITE", Flags::NONFINITE)];
    let more = [("REDO", Flags::REDO), ("NO_GSO", Flags::NO_GSO), ("NO_CHECKSUM", Flags::NO_CHECKSUM)];
    for (name, flag) in flags.into_iter().chain(more) {
        assert_eq!(value(&format!("FLAG_{name}")), i64::from(flag.to_wire()));
    }
}

#[test]
fn counters_are_those_of_the_wire() {
    let constants = constants();
    for counter in Counter::ALL {
        let mut name = "COUNT".to_owned();
        for letter in format!("{counter:?}").chars() {
            name.extend(letter.is_uppercase().then_some('_').into_iter().chain(letter.to_uppercase()));
        }
        assert_eq!(constants.get(&name), Some(&(counter.index() as i64)), "{name}");
    }
}
