//! Every worker gets the same bits, those of the exact sum, in whatever order packets arrive and however often; and after
//! every packet the banks are what the rules say (WIRE section 2, S1 to S7).

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use xagg_proto::aggregator::Status;
use xagg_wire::fixed::{Exponent, Magnitude, magnitude, quantise};
use xagg_wire::repr::Contribution;
use xagg_wire::{Counter, Kind, Packet, Reason, Receipts, Repr};

use super::fixture::{Fixture, LANES, Outcome};

/// The numbers of WIRE section 2, computed from its text.
struct Numbers {
    workers: i64,
    value_bits: i32,
    guard_bits: i32,
}

impl Numbers {
    fn of(workers: usize) -> Self {
        let carry_bits = f64::from(workers as u32).log2().ceil() as i32;
        let value_bits = 24.min(28 - carry_bits);
        Self { workers: workers as i64, value_bits, guard_bits: 32 - carry_bits - value_bits }
    }

    /// F1 and F2: the smallest exponent, `None` for zeros.
    fn exponent(values: &[f32]) -> Option<i32> {
        let fits = |e: &i32| values.iter().all(|value| f64::from(value.abs()) < 2.0_f64.powi(*e));
        let is_zero = values.iter().all(|value| *value == 0.0);
        if is_zero { None } else { (-149..=128).find(fits) }
    }

    /// F1: a value as an integer.
    fn integer(&self, value: f32, exponent: i32) -> i64 {
        let scaled = f64::from(value) * 2.0_f64.powi(self.value_bits - 1 - exponent);
        let limit = 2.0_f64.powi(self.value_bits - 1) - 1.0;
        scaled.round_ties_even().clamp(-limit, limit) as i64
    }
}

/// What one worker adds to one fragment; `None` if that is not finite.
type Input = Option<Vec<f32>>;

/// The RESULT that everybody must get.
#[derive(Debug, PartialEq)]
struct Expected {
    exponent: i16,
    redo: bool,
    /// `None` if some input is not finite: then lanes mean nothing.
    lanes: Option<Vec<u32>>,
}

/// F1 to F5 in integers wide enough for all bits: there is no order in which anything is added.
fn expected(numbers: &Numbers, inputs: &[Input]) -> Expected {
    let exponents: Vec<Option<i32>> =
        inputs.iter().map(|input| input.as_ref().and_then(|values| Numbers::exponent(values))).collect();
    let (largest, least) = (exponents.iter().flatten().max(), exponents.iter().flatten().min());
    let spread = largest.zip(least).map_or(0, |(largest, least)| largest - least);
    let is_finite = inputs.iter().all(Option::is_some);
    let redo = spread > numbers.guard_bits && is_finite;
    let bias = numbers.workers << (numbers.value_bits - 1 + numbers.guard_bits);
    let lane = |index: usize| {
        let addend = |(input, own): (&Input, &Option<i32>)| {
            let (Some(values), Some(own), Some(largest)) = (input, own, largest) else { return 0 };
            let exponent = if redo { *largest } else { *own };
            let integer = numbers.integer(values[index], exponent) << numbers.guard_bits;
            let below = 1 << (largest - exponent);
            assert_eq!(integer % below, 0, "only zero guard bits leave");
            integer / below
        };
        (bias + inputs.iter().zip(&exponents).map(addend).sum::<i64>()) as u32
    };
    Expected {
        exponent: largest.map_or(i16::MIN, |largest| *largest as i16),
        redo,
        lanes: is_finite.then(|| (0..LANES).map(lane).collect()),
    }
}

/// Inputs of one fragment: magnitudes within the guard bits, at their edge, or far apart; zeros; the largest that there are.
fn random_inputs(rng: &mut StdRng, numbers: &Numbers) -> Vec<Input> {
    let reach = *[0, 3, numbers.guard_bits, numbers.guard_bits + 1, 40, 270].choose(rng).expect("some");
    let base = rng.random_range(-149..=128 - reach.min(277));
    let any_is_nonfinite = rng.random_bool(0.05);
    let input = |_| {
        let at_the_edges = rng.random_bool(0.5);
        let scale =
            base + if at_the_edges { reach * rng.random_range(0..=1) } else { rng.random_range(0..=reach) };
        let most = (2.0_f64.powi(scale)).min(f64::from(f32::MAX));
        match rng.random_range(0..10) {
            0 => Some(vec![0.0; LANES]),
            1 => Some(vec![-0.0; LANES]),
            2 => Some(vec![most as f32; LANES]),
            3 => Some(vec![-most as f32; LANES]),
            4 if any_is_nonfinite => None,
            _ => Some((0..LANES).map(|_| (rng.random_range(-1.0..=1.0) * most) as f32).collect()),
        }
    };
    (0..numbers.workers).map(input).collect()
}

/// A worker that keeps to the rules, but knows no time: it sends again whenever nothing is under way any more.
#[derive(Default)]
struct Peer {
    next: u64,
    packet_number: u32,
    /// The second phases that it was asked for.
    redo: HashMap<u64, Exponent>,
    results: HashMap<u64, Vec<u8>>,
    /// Numbers of its GRADIENTs that have arrived, and their timestamps.
    arrived: HashMap<u32, u32>,
}

struct Run {
    fixture: Fixture,
    rng: StdRng,
    loss: f64,
    inputs: Vec<Vec<Input>>,
    expected: Vec<Expected>,
    peers: Vec<Peer>,
    /// Packets towards the aggregator, in no order.
    under_way: Vec<(u16, Vec<u8>)>,
    /// By fragment and phase: whose contribution has arrived.
    contributed: HashMap<(u64, bool), BTreeSet<u16>>,
    handled: u64,
}

impl Run {
    fn new(workers: usize, slots: u32, fragments: usize, loss: f64, seed: u64) -> Self {
        let (numbers, mut rng) = (Numbers::of(workers), StdRng::seed_from_u64(seed));
        let inputs: Vec<Vec<Input>> = (0..fragments).map(|_| random_inputs(&mut rng, &numbers)).collect();
        Self {
            fixture: Fixture::joined(workers, slots),
            rng,
            loss,
            expected: inputs.iter().map(|inputs| expected(&numbers, inputs)).collect(),
            inputs,
            peers: (0..workers).map(|_| Peer::default()).collect(),
            under_way: vec![],
            contributed: HashMap::new(),
            handled: 0,
        }
    }

    /// Until everybody has every result.
    fn run(&mut self) {
        let ranks = self.fixture.job.worker_count();
        (0..ranks).for_each(|rank| self.fill_window(rank));
        let mut rounds = 0;
        while self.peers.iter().any(|peer| peer.results.len() < self.inputs.len()) {
            while !self.under_way.is_empty() {
                self.step();
            }
            rounds += 1;
            assert!(rounds < 1000, "no progress");
            (0..ranks).for_each(|rank| self.ask_again(rank));
        }
        self.check_counters();
    }

    /// WIRE S6.
    fn fill_window(&mut self, rank: u16) {
        loop {
            let peer = &mut self.peers[usize::from(rank)];
            let sequence = peer.next;
            let before = sequence.checked_sub(u64::from(self.fixture.job.slots));
            let may_send = before.is_none_or(|before| peer.results.contains_key(&before));
            if sequence == self.inputs.len() as u64 || !may_send {
                return;
            }
            peer.next += 1;
            self.send_gradient(rank, sequence);
        }
    }

    fn ask_again(&mut self, rank: u16) {
        let peer = &self.peers[usize::from(rank)];
        let missing: Vec<u64> =
            (0..peer.next).filter(|sequence| !peer.results.contains_key(sequence)).collect();
        for sequence in missing {
            if self.rng.random() {
                self.send_gradient(rank, sequence);
            } else {
                let redo = self.peers[usize::from(rank)].redo.contains_key(&sequence);
                let slot = self.fixture.job.slot(sequence);
                let pull = Repr::Pull { sequence, slot, redo, timestamp: 0 };
                self.under_way.push((rank, self.fixture.payload(rank, &pull, |_| ())));
            }
        }
    }

    fn send_gradient(&mut self, rank: u16, sequence: u64) {
        let zeros = vec![0.0; LANES];
        let input = &self.inputs[sequence as usize][usize::from(rank)];
        let values = input.as_ref().unwrap_or(&zeros);
        let own = match magnitude(values) {
            Magnitude::Finite(exponent) => exponent,
            Magnitude::Zero | Magnitude::Nonfinite => Exponent::ZERO,
        };
        let peer = &mut self.peers[usize::from(rank)];
        peer.packet_number += 1;
        let redo = peer.redo.get(&sequence).copied();
        let exponent = redo.unwrap_or(own);
        let contribution = Contribution {
            sequence,
            slot: self.fixture.job.slot(sequence),
            packet_number: peer.packet_number,
            redo: redo.is_some(),
            nonfinite: input.is_none(),
            ack_request: self.rng.random_bool(0.3),
            exponent,
            contributors: 1,
            weight: u32::from(rank) + 1,
            signature: 7,
            timestamp: self.rng.random(),
        };
        let format = self.fixture.job.format;
        let write_body = |body: &mut [u8]| quantise(format, exponent, values, body);
        self.under_way.push((rank, self.fixture.payload(rank, &Repr::Gradient(contribution), write_body)));
    }

    /// Any one of the packets that are under way arrives, is lost, or arrives and is still under way.
    fn step(&mut self) {
        let index = self.rng.random_range(0..self.under_way.len());
        if self.rng.random_bool(self.loss) {
            self.under_way.swap_remove(index);
            return;
        }
        let (rank, payload) = if self.rng.random_bool(0.2) {
            self.under_way[index].clone()
        } else {
            self.under_way.swap_remove(index)
        };
        self.note_arrival(rank, &payload);
        self.handled += 1;
        match self.fixture.run(self.fixture.address(rank), &payload) {
            Outcome::Drop(reason) => assert_eq!(reason, None, "who keeps to the rules is never refused"),
            Outcome::Reply(answer) => self.answer(rank, &answer),
            Outcome::Broadcast(copies) => {
                (0..).zip(&copies).for_each(|(rank, answer)| self.answer(rank, answer));
            }
        }
        self.check_bank(Packet::new_unchecked(&payload).sequence());
    }

    fn note_arrival(&mut self, rank: u16, payload: &[u8]) {
        let packet = Packet::new_unchecked(payload);
        if packet.kind() == Some(Kind::Gradient) {
            let redo = packet.flags().contains(xagg_wire::Flags::REDO);
            self.contributed.entry((packet.sequence(), redo)).or_default().insert(rank);
            let peer = &mut self.peers[usize::from(rank)];
            peer.arrived.insert(packet.packet_number(), packet.timestamp());
        }
    }

    fn answer(&mut self, rank: u16, payload: &[u8]) {
        let (_, repr) = Repr::parse(&Packet::new_unchecked(payload), LANES, true).expect("sound");
        let peer = &mut self.peers[usize::from(rank)];
        match repr {
            Repr::Ack { receipts } => check_receipts(peer, receipts),
            Repr::Pending { sequence, seen, receipts } => {
                check_receipts(peer, receipts);
                let has_redo = self.fixture.bank(sequence).redo;
                let ranks = self.contributed.get(&(sequence, has_redo));
                assert_eq!(seen, bitmap(ranks.unwrap_or(&BTreeSet::new())), "who has contributed");
            }
            Repr::Redo { sequence, exponent, receipts, .. } => {
                check_receipts(peer, receipts);
                let expected = &self.expected[sequence as usize];
                assert_eq!((true, exponent.to_wire()), (expected.redo, expected.exponent));
                let is_new = peer.redo.insert(sequence, exponent).is_none();
                // Lost on the way, it is asked for again: `ask_again` finds the result missing.
                if is_new && !self.rng.random_bool(self.loss) {
                    self.send_gradient(rank, sequence);
                }
            }
            Repr::Result { sequence, receipts, .. } => {
                check_receipts(peer, receipts);
                self.check_result(sequence, payload);
                if !self.rng.random_bool(self.loss) {
                    self.peers[usize::from(rank)].results.insert(sequence, payload.to_vec());
                    self.fill_window(rank);
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn check_result(&self, sequence: u64, payload: &[u8]) {
        let packet = Packet::new_unchecked(payload);
        let expected = &self.expected[sequence as usize];
        let workers = self.fixture.job.worker_count();
        let nonfinite = packet.flags().contains(xagg_wire::Flags::NONFINITE);
        let lanes = packet.body().as_chunks::<4>().0.iter().map(|lane| u32::from_le_bytes(*lane)).collect();
        let got = (packet.exponent(), packet.contributors(), packet.weight(), (!nonfinite).then_some(lanes));
        let weight = u32::from(workers) * (u32::from(workers) + 1) / 2;
        assert_eq!(got, (expected.exponent, workers, weight, expected.lanes.clone()), "fragment {sequence}");
    }

    /// What a bank says of itself is what has arrived.
    fn check_bank(&self, sequence: u64) {
        let bank = self.fixture.bank(sequence);
        if bank.status == Status::Empty || bank.sequence != sequence {
            return;
        }
        let nobody = BTreeSet::new();
        let ranks = self.contributed.get(&(sequence, bank.redo)).unwrap_or(&nobody);
        let weight: u32 = ranks.iter().map(|rank| u32::from(*rank) + 1).sum();
        let of_bank = (bank.seen, usize::from(bank.contributors), bank.weight);
        assert_eq!(of_bank, (bitmap(ranks), ranks.len(), weight), "fragment {sequence}");
        let is_complete = ranks.len() == self.peers.len();
        assert_eq!(bank.status == Status::Done, is_complete, "done once everybody is there: WIRE S7");
        assert!(bank.least_exponent <= bank.exponent);
    }

    fn check_counters(&self) {
        let count = |counter| self.fixture.count(counter);
        let workers = self.peers.len() as u64;
        let redos = self.expected.iter().filter(|expected| expected.redo).count() as u64;
        let fragments = self.inputs.len() as u64;
        assert_eq!((count(Counter::Broadcast), count(Counter::Redo)), (fragments, redos), "once each");
        assert_eq!(count(Counter::Added), workers * (fragments + redos), "exactly once");
        assert_eq!(count(Counter::Copies), workers * (fragments + redos));
        assert_eq!(count(Counter::Packets), self.handled + workers, "and the HELLOs");
        assert!(Reason::ALL.iter().all(|reason| self.fixture.refused(*reason) == (0, 0)));
    }
}

fn bitmap(ranks: &BTreeSet<u16>) -> [u64; 4] {
    let mut bitmap = [0; 4];
    ranks.iter().for_each(|rank| bitmap[usize::from(rank / 64)] |= 1 << (rank % 64));
    bitmap
}

/// WIRE H6: nothing is receipted that has not arrived.
fn check_receipts(peer: &Peer, receipts: Receipts) {
    for behind in (0..32).filter(|behind| receipts.bitmap >> behind & 1 == 1) {
        assert!(peer.arrived.contains_key(&(receipts.largest - behind)), "{receipts:?}");
    }
    if receipts.bitmap != 0 {
        assert_eq!(peer.arrived.get(&receipts.largest), Some(&receipts.echo));
        let arrived = peer.arrived.keys().filter(|number| receipts.largest - **number < 32).count();
        assert_eq!(
            receipts.bitmap.count_ones() as usize,
            arrived,
            "and all that has arrived is: {receipts:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn sums_do_not_depend_on_the_order_of_arrival(
        workers in 1..=17_usize,
        slots in 1..=4_u32,
        fragments in 1..=20_usize,
        loss in prop_oneof![Just(0.0), Just(0.2)],
        seed in any::<u64>(),
    ) {
        Run::new(workers, slots, fragments, loss, seed).run();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4) })]

    #[test]
    fn sums_of_many_workers_fit(workers in 200..=256_usize, seed in any::<u64>()) {
        Run::new(workers, 2, 7, 0.05, seed).run();
    }

    #[test]
    fn sums_of_the_most_workers_fit(seed in any::<u64>()) {
        Run::new(256, 1, 5, 0.0, seed).run();
    }
}
