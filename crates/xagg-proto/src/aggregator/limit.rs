//! How many REJECTs a worker gets: WIRE H9.

use xagg_wire::{REJECT_BURST, REJECT_INTERVAL};

use crate::Time;

/// A bucket of [`REJECT_BURST`] tokens that gets one more every [`REJECT_INTERVAL`], kept as the time at which it is full.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RejectLimit {
    full: Time,
}

impl RejectLimit {
    /// Takes a token; `false`: there is none.
    pub(super) fn take(&mut self, now: Time) -> bool {
        let full = self.full.max(now) + REJECT_INTERVAL;
        let is_taken = full.since(now) <= REJECT_BURST * REJECT_INTERVAL;
        if is_taken {
            self.full = full;
        }
        is_taken
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_then_one_an_interval() {
        let mut limit = RejectLimit::default();
        let start = Time::ZERO + Duration::from_secs(1000);
        let taken = |limit: &mut RejectLimit, now| (0..100).filter(|_| limit.take(now)).count() as u32;
        assert_eq!(taken(&mut limit, start), REJECT_BURST);
        let just_before = start + (REJECT_INTERVAL - Duration::from_nanos(1));
        assert_eq!(taken(&mut limit, just_before), 0);
        assert_eq!(taken(&mut limit, start + REJECT_INTERVAL), 1);
        assert_eq!(taken(&mut limit, start + 5 * REJECT_INTERVAL), 4);
        assert_eq!(taken(&mut limit, start + Duration::from_secs(3600)), REJECT_BURST, "no more is saved up");
    }
}
