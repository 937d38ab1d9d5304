//! The smallest scenario that still breaks the same rule: what is left in it is what it takes.

use crate::scenario::{Link, Scenario};
use crate::{Violation, run};

/// Makes a scenario that ends in `violation` smaller as long as the same rule breaks; the smallest found, and what it ends in.
/// Tries at most `tries` scenarios.
#[must_use]
pub fn shrink(scenario: &Scenario, violation: &Violation, tries: usize) -> (Scenario, Violation) {
    let (mut smallest, mut seen) = (scenario.clone(), violation.clone());
    let mut left = tries;
    'smaller: loop {
        for candidate in candidates(&smallest) {
            if left == 0 {
                return (smallest, seen);
            }
            left -= 1;
            if let Err(found) = run(&candidate)
                && found.rule == violation.rule
            {
                (smallest, seen) = (candidate, found);
                continue 'smaller;
            }
        }
        return (smallest, seen);
    }
}

/// Scenarios that are each smaller in one way, the largest steps first.
fn candidates(scenario: &Scenario) -> Vec<Scenario> {
    let mut all = vec![];
    let mut with = |change: &dyn Fn(&mut Scenario)| {
        let mut candidate = scenario.clone();
        change(&mut candidate);
        if candidate != *scenario {
            all.push(candidate);
        }
    };
    for place in 0..scenario.incidents.len() {
        with(&|smaller| {
            smaller.incidents.remove(place);
        });
    }
    let count = scenario.workers.len();
    with(&|smaller| smaller.keep_workers(count.div_ceil(2)));
    with(&|smaller| smaller.keep_workers(count - 1));
    with(&|smaller| smaller.operations.truncate(smaller.operations.len().div_ceil(2)));
    with(&|smaller| smaller.operations.iter_mut().for_each(|length| *length = length.div_ceil(2)));
    with(&|smaller| smaller.operations.truncate((smaller.operations.len() - 1).max(1)));
    with(&|smaller| smaller.intruder = false);
    with(&|smaller| smaller.checksum = true);
    with(&|smaller| smaller.values.spread = 0);
    with(&|smaller| (smaller.values.zero, smaller.values.nonfinite) = (0.0, 0.0));
    for calm in CALMER {
        with(&|smaller| smaller.links().for_each(calm));
    }
    with(&|smaller| smaller.workers.iter_mut().for_each(|worker| worker.rate = None));
    with(&|smaller| smaller.workers.iter_mut().for_each(|worker| (worker.start, worker.compute) = (0, 0)));
    all
}

/// What can be taken from all links.
const CALMER: [fn(&mut Link); 8] = [
    |link| link.rate = None,
    |link| link.loss = 0.0,
    |link| link.burst = 0.0,
    |link| link.duplication = 0.0,
    |link| link.reordering = 0.0,
    |link| link.corruption = 0.0,
    |link| link.jitter = 0,
    |link| link.delay = 20,
];

impl Scenario {
    fn keep_workers(&mut self, count: usize) {
        self.workers.truncate(count.max(1));
        let ranks = self.workers.len() as u16;
        self.incidents.retain(|incident| incident.rank().is_none_or(|rank| rank < ranks));
    }

    fn links(&mut self) -> impl Iterator<Item = &mut Link> {
        let hubs = [&mut self.to_aggregator, &mut self.from_aggregator];
        self.workers.iter_mut().flat_map(|worker| [&mut worker.up, &mut worker.down]).chain(hubs)
    }
}
