//! A scenario for every seed: most are small and bad, some are large, some are calm.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use xagg_wire::Rate;

use crate::scenario::{Incident, Link, Scenario, Values, Way, WorkerPlan};

const SECOND: u64 = 1_000_000;
/// More than all outages that heal together.
const TIMEOUT: u64 = 20 * SECOND;

/// The scenario of a seed.
#[must_use]
pub fn scenario(seed: u64) -> Scenario {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let count = worker_count(&mut rng);
    let lanes = if rng.random_ratio(1, 10) { 48 } else { 16 };
    let most = (400 / count).clamp(1, 40);
    let operations: Vec<usize> =
        (0..rng.random_range(1..=6)).map(|_| rng.random_range(1..=lanes * most)).collect();
    let fragments: usize = operations.iter().map(|length| length.div_ceil(lanes)).sum();
    let slots = if rng.random_bool(0.4) { rng.random_range(1..=8) } else { fragments as u32 };
    let weather = Weather::random(&mut rng);
    let hub_rate = rate(&mut rng).map(|rate| rate * 2.0);
    Scenario {
        seed,
        lanes,
        slots,
        timeout: TIMEOUT,
        ring: *[64, 256, 4096].choose(&mut rng).expect("not empty"),
        operations,
        values: values(&mut rng),
        intruder: rng.random_bool(0.3),
        to_aggregator: Link { rate: hub_rate, ..weather.link(&mut rng) },
        from_aggregator: Link { rate: hub_rate, ..weather.link(&mut rng) },
        workers: (0..count).map(|_| worker(&mut rng, &weather)).collect(),
        incidents: incidents(&mut rng, count),
        checksum: weather.corruption > 0.0 || rng.random(),
    }
}

fn worker_count(rng: &mut ChaCha8Rng) -> usize {
    match rng.random_range(0..100) {
        0..65 => rng.random_range(1..=4),
        65..88 => rng.random_range(5..=8),
        88..97 => rng.random_range(9..=16),
        97 => 130,
        _ => 64,
    }
}

fn values(rng: &mut ChaCha8Rng) -> Values {
    Values {
        spread: *[0, 2, 4, 12, 30].choose(rng).expect("not empty"),
        zero: *[0.0, 0.1, 0.5].choose(rng).expect("not empty"),
        nonfinite: *[0.0, 0.0, 0.02].choose(rng).expect("not empty"),
    }
}

fn worker(rng: &mut ChaCha8Rng, weather: &Weather) -> WorkerPlan {
    let rate = rate(rng);
    WorkerPlan {
        start: if rng.random_bool(0.2) { rng.random_range(0..3 * SECOND) } else { 0 },
        compute: *[0, 0, 300, 20_000].choose(rng).expect("not empty"),
        in_flight: rng.random_range(1..=4),
        weight: rng.random_range(1..=10),
        receive_queue: *[0, 16, 1000].choose(rng).expect("not empty"),
        rate: rng.random_bool(0.2).then(|| Rate::mbit(*[5, 50, 500].choose(rng).expect("not empty"))),
        up: Link { rate, ..weather.link(rng) },
        down: Link { rate, ..weather.link(rng) },
    }
}

fn rate(rng: &mut ChaCha8Rng) -> Option<f64> {
    rng.random_bool(0.5).then(|| *[5.0, 50.0, 250.0, 1000.0].choose(rng).expect("not empty"))
}

/// How bad all links of a scenario are, at most.
struct Weather {
    loss: f64,
    burst: f64,
    duplication: f64,
    reordering: f64,
    corruption: f64,
    stale: u64,
}

impl Weather {
    fn random(rng: &mut ChaCha8Rng) -> Self {
        let calm =
            Self { loss: 0.0, burst: 0.0, duplication: 0.0, reordering: 0.0, corruption: 0.0, stale: 0 };
        // Every packet goes over two links, and so does its answer.
        let bad = Self {
            loss: 0.05,
            burst: 0.005,
            duplication: 0.1,
            reordering: 0.1,
            corruption: 0.02,
            stale: *[300, 20_000, 500_000].choose(rng).expect("not empty"),
        };
        match rng.random_range(0..10) {
            0..2 => calm,
            2..4 => Self { loss: 0.01, ..calm },
            4 => Self { burst: 0.02, ..calm },
            5 => Self { duplication: 0.3, reordering: 0.3, stale: bad.stale, ..calm },
            _ => bad,
        }
    }

    fn link(&self, rng: &mut ChaCha8Rng) -> Link {
        let mut up_to = |most: f64| if most > 0.0 { rng.random_range(0.0..most) } else { 0.0 };
        let (loss, burst, duplication) = (up_to(self.loss), up_to(self.burst), up_to(self.duplication));
        let (reordering, corruption) = (up_to(self.reordering), up_to(self.corruption));
        let queue = *[16, 64, 256].choose(rng).expect("not empty");
        Link {
            queue,
            mark_above: rng.random_bool(0.6).then_some(queue / 4),
            delay: *[5, 20, 20, 200, 5000].choose(rng).expect("not empty"),
            jitter: *[0, 0, 50, 1000].choose(rng).expect("not empty"),
            loss,
            burst,
            burst_lasting: *[100, 2000, 100_000].choose(rng).expect("not empty"),
            duplication,
            reordering,
            stale: self.stale,
            corruption,
            ..Link::default()
        }
    }
}

fn incidents(rng: &mut ChaCha8Rng, count: usize) -> Vec<Incident> {
    let most = *[0, 0, 1, 3].choose(rng).expect("not empty");
    let mut incidents: Vec<Incident> = (0..most).map(|_| passing(rng, count)).collect();
    if rng.random_bool(0.15) {
        incidents.push(crash(rng, count));
    }
    incidents
}

fn passing(rng: &mut ChaCha8Rng, count: usize) -> Incident {
    let rank = rng.random_range(0..count) as u16;
    let at = rng.random_range(0..SECOND);
    let lasting = rng.random_range(SECOND / 10..4 * SECOND);
    let way = *[Way::Both, Way::Both, Way::Up, Way::Down].choose(rng).expect("not empty");
    match rng.random_range(0..10) {
        0..4 => Incident::Pause { rank, at, lasting },
        4..8 => Incident::Partition { rank, at, lasting, way },
        _ => Incident::Claims { rank, at, lasting },
    }
}

fn crash(rng: &mut ChaCha8Rng, count: usize) -> Incident {
    let at = rng.random_range(0..SECOND / 2);
    let restart = rng.random_bool(0.6).then(|| rng.random_range(0..3 * SECOND));
    if rng.random() {
        Incident::CrashWorker { rank: rng.random_range(0..count) as u16, at, restart }
    } else {
        Incident::CrashAggregator { at, restart, unreachable: rng.random() }
    }
}
