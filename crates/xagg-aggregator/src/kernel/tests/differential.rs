//! The kernel program against its twin: the same packets must give the same verdicts, answers, counters and slots.
//! `XAGG_SEED=N` replays a run, `XAGG_PACKETS=N` makes it longer.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use xagg_proto::aggregator::{Action, Status};
use xagg_proto::{Aggregator, Time};
use xagg_testbed::skip_unless_root;
use xagg_wire::counter::COUNTERS;
use xagg_wire::{Counter, Family, Kind, Packet, REJECT_INTERVAL, Reason};

use super::generator::{Generated, Generator};
use super::harness::{Harness, INCARNATION, Outcome, RING, Tags, job_over};

/// Workers, lanes and slots of a job, and what its frames are like.
type Shape = (usize, usize, u32, Family, Tags);

/// Those of the jobs, in turn.
const SHAPES: [Shape; 12] = [
    (1, 16, 1, Family::V4, Tags::None),
    (2, 16, 1, Family::V6, Tags::None),
    (2, 352, 2, Family::V4, Tags::None),
    (3, 16, 3, Family::V4, Tags::All),
    (3, 848, 2, Family::V4, Tags::None),
    (4, 352, 5, Family::V4, Tags::Some),
    (3, 832, 2, Family::V6, Tags::Some),
    (8, 16, 4, Family::V4, Tags::None),
    (9, 16, 4, Family::V6, Tags::All),
    (4, 336, 5, Family::V6, Tags::None),
    (256, 16, 1, Family::V4, Tags::None),
    (2, 288, 3, Family::V6, Tags::All),
];
const PACKETS_A_JOB: u64 = 5000;
/// From here on workers disagree now and then, which sticks banks: before, a job gets deep.
const FIRST_MISMATCH: u64 = PACKETS_A_JOB / 5 * 4;
/// Of 10000 packets.
const MISMATCHES: u32 = 200;
/// About one of ten is there after a second phase.
const FEW_RESULTS: u64 = 100;
/// Two jobs of each shape.
const LEAST_PACKETS: u64 = 2 * SHAPES.len() as u64 * PACKETS_A_JOB;

pub(super) fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn kernel_and_twin_agree() {
    if skip_unless_root("kernel_and_twin_agree") {
        return;
    }
    let seed = from_environment("XAGG_SEED").unwrap_or_else(rand::random);
    let packets = from_environment("XAGG_PACKETS").unwrap_or(LEAST_PACKETS);
    println!("differential test: {packets} packets, replay with XAGG_SEED={seed} XAGG_PACKETS={packets}");
    eprintln!("differential test with XAGG_SEED={seed}");
    let mut total = [0; COUNTERS];
    let mut reached = [Reached::default(); SHAPES.len()];
    for round in 0..packets.div_ceil(PACKETS_A_JOB) {
        let shape = (round % SHAPES.len() as u64) as usize;
        let mut pair = Pair::new(SHAPES[shape], seed.wrapping_add(round));
        for number in 0..PACKETS_A_JOB {
            let context = || format!("XAGG_SEED={seed}, job {round} {:?}, packet {number}", SHAPES[shape]);
            pair.generator.mismatches = if number < FIRST_MISMATCH { 0 } else { MISMATCHES };
            pair.step(&context);
        }
        pair.check_all();
        reached[shape].note(&pair);
        for (sum, count) in total.iter_mut().zip(pair.harness.counters()) {
            *sum += count;
        }
        for (sum, count) in total.iter_mut().zip(pair.harness.unassigned()) {
            *sum += count;
        }
    }
    check_coverage(&total);
    if packets >= LEAST_PACKETS {
        SHAPES.iter().zip(reached).for_each(|(shape, reached)| reached.check(*shape));
    }
}

/// How deep the jobs of a shape got: counters of all jobs together do not tell that one shape never had a result.
#[derive(Clone, Copy, Debug, Default)]
struct Reached {
    generation: u64,
    results: u64,
    redos: u64,
    mismatches: u64,
}

impl Reached {
    fn note(&mut self, pair: &Pair) {
        let job = &pair.harness.job;
        let counters = pair.counters();
        let banks = (0..job.slots).flat_map(|slot| [(slot, 0), (slot, 1)]);
        let done = banks.filter_map(|(slot, bank)| {
            let (bank, _) = pair.twin.bank(job.id, job.view, slot, bank)?;
            (bank.status == Status::Done).then(|| bank.sequence / u64::from(job.slots))
        });
        self.generation = done.fold(self.generation, u64::max);
        self.results += counters[Counter::Broadcast.index()];
        self.redos += counters[Counter::Redo.index()];
        self.mismatches += counters[usize::from(Reason::Mismatch)];
    }

    fn check(self, shape: Shape) {
        let workers = shape.0;
        let shape = format!("workers, lanes, slots, ... {shape:?}: {self:?}");
        assert!(self.generation >= 3, "banks are never used again: {shape}");
        // One worker agrees with itself on everything; of few results it may be that none had a second phase.
        let has_redos = self.redos > 0 || self.results < FEW_RESULTS;
        let others = workers == 1 || (has_redos && self.mismatches > 0);
        assert!(self.results > 0 && others, "not deep enough: {shape}");
    }
}

/// A test that reaches nothing proves nothing. FRAGMENT is for whole frames and CURSOR for too many copies: the table tests have them.
fn check_coverage(total: &[u64; COUNTERS]) {
    for reason in Reason::ALL.iter().filter(|reason| ![Reason::Fragment, Reason::Cursor].contains(reason)) {
        assert!(total[usize::from(*reason)] > 0, "no packet was refused as {}", reason.name());
    }
    for counter in Counter::ALL {
        assert!(total[counter.index()] > 0, "nothing counted as {}", counter.name());
    }
}

struct Pair {
    harness: Harness,
    twin: Aggregator,
    generator: Generator,
    rng: StdRng,
    now: Time,
}

impl Pair {
    fn new((workers, lanes, slots, family, tags): Shape, seed: u64) -> Self {
        let mut job = job_over(family, workers, lanes, slots);
        // In every run half the jobs, and another half the next time.
        job.checksum = seed.is_multiple_of(2);
        let mut twin = Aggregator::new(INCARNATION, RING);
        twin.admit_job(&job).expect("the first job");
        let generator = Generator::new(&job);
        Self {
            harness: Harness::with_tags(job, tags),
            twin,
            generator,
            rng: StdRng::seed_from_u64(seed),
            now: Time::ZERO,
        }
    }

    fn step(&mut self, context: &impl Fn() -> String) {
        let Generated { source, payload } = self.generator.next(&mut self.rng, &self.twin);
        self.pass_time();
        let marked = self.rng.random_ratio(1, 4);
        let kernel = self.harness.run_marked(source, marked, &payload);
        let twin = self.run_twin(source, marked, &payload);
        if kernel != twin {
            let packet = Packet::new_checked(&payload).ok();
            let summary =
                packet.map(|packet| (packet.kind(), packet.flags(), packet.rank(), packet.sequence()));
            panic!("{}: {summary:?}\nkernel {}\ntwin   {}", context(), describe(&kernel), describe(&twin));
        }
        if let Ok(packet) = Packet::new_checked(&payload)
            && packet.kind() != Some(Kind::Hello)
        {
            self.check_slot(self.harness.job.slot(packet.sequence()), context);
        }
        assert_eq!(self.harness.counters(), *self.counters(), "{}: counters", context());
    }

    /// Mostly so little that workers use up the REJECTs that they may have.
    fn pass_time(&mut self) {
        if self.rng.random_ratio(1, 100) {
            self.now = self.now + REJECT_INTERVAL.mul_f64(self.rng.random_range(0.0..3.0));
            self.harness.set_now(self.now);
        }
    }

    fn run_twin(&mut self, source: std::net::SocketAddr, marked: bool, payload: &[u8]) -> Outcome {
        let mut packet = payload.to_vec();
        match self.twin.handle(self.now, source, marked, &mut packet) {
            Action::Drop(_) => Outcome::Drop,
            Action::Reply { len } => Outcome::Reply(packet[..len].to_vec()),
            Action::Broadcast { len } => {
                let mut copies = vec![];
                while let Some(destination) = self.twin.next_copy(&mut packet[..len]) {
                    copies.push((destination, packet[..len].to_vec()));
                }
                Outcome::Broadcast(copies)
            }
        }
    }

    fn counters(&self) -> &[u64; COUNTERS] {
        self.twin.counters(self.harness.job.id, self.harness.job.view).expect("admitted")
    }

    fn check_slot(&self, slot: u32, context: &impl Fn() -> String) {
        for index in 0..2 {
            let job = &self.harness.job;
            let (twin, lanes) = self.twin.bank(job.id, job.view, slot, index).expect("in range");
            let kernel = self.harness.bank(slot, index);
            assert_eq!(kernel.status, twin.status as u8, "{}: status", context());
            if twin.status == Status::Empty {
                continue;
            }
            let of_kernel = (
                (kernel.redo != 0, kernel.nonfinite != 0, kernel.sequence, kernel.seen, kernel.signature),
                (kernel.weight, kernel.contributors, kernel.exponent, kernel.least_exponent, kernel.cursor),
                (kernel.first_rank, kernel.other_rank, kernel.other_signature),
            );
            let of_twin = (
                (twin.redo, twin.nonfinite, twin.sequence, twin.seen, twin.signature),
                (
                    twin.weight,
                    u32::from(twin.contributors),
                    twin.exponent.to_wire(),
                    twin.least_exponent.to_wire(),
                    twin.cursor,
                ),
                (twin.first_rank, twin.other_rank, twin.other_signature),
            );
            assert_eq!(of_kernel, of_twin, "{}: slot {slot}, bank {index}", context());
            assert!(
                self.harness.sums(slot, index) == lanes,
                "{}: lanes of slot {slot}, bank {index}",
                context()
            );
        }
    }

    /// All slots, and what the workers' flows say.
    fn check_all(&self) {
        let job = &self.harness.job;
        for slot in 0..job.slots {
            self.check_slot(slot, &|| "at the end".to_owned());
        }
        for (rank, progress) in (0..).zip(self.twin.progress(job.id, job.view)) {
            let flow = self.harness.flow(rank);
            let of_kernel = (flow.nonce != 0, flow.packets, flow.sequences);
            assert_eq!(of_kernel, (progress.joined, progress.packets, progress.sequences), "rank {rank}");
        }
        assert_eq!(self.harness.unassigned(), *self.twin.unassigned());
    }
}

fn describe(outcome: &Outcome) -> String {
    let header =
        |payload: &[u8]| format!("{:02x?} ({} bytes)", &payload[..payload.len().min(96)], payload.len());
    match outcome {
        Outcome::Drop | Outcome::Pass => format!("{outcome:?}"),
        Outcome::Reply(payload) => format!("reply {}", header(payload)),
        Outcome::Broadcast(copies) => {
            let first = copies.first().map(|(to, payload)| format!("{to} {}", header(payload)));
            format!("{} copies, the first {}", copies.len(), first.unwrap_or_default())
        }
    }
}
