//! Slots and their banks: what a packet finds there (WIRE section 4) and how it is added (F4, F5).

use xagg_wire::fixed::{Exponent, Format, add_lanes, copy_lanes, shift_lanes};
use xagg_wire::{Flags, Packet};

use crate::Job;

/// What a bank holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Nothing yet.
    #[default]
    Empty = 0,
    /// Contributions of some workers.
    Gathering = 1,
    /// The result.
    Done = 2,
    /// Contributions to different operations.
    Mismatched = 3,
}

/// The state of a bank, beside its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bank {
    /// What it holds.
    pub status: Status,
    /// Contributions are those of the second phase (WIRE F5).
    pub redo: bool,
    /// Some contribution was not finite.
    pub nonfinite: bool,
    /// The fragment.
    pub sequence: u64,
    /// The ranks that have contributed.
    pub seen: [u64; 4],
    /// The operation.
    pub signature: u32,
    /// The sum of weights.
    pub weight: u32,
    /// How many have contributed.
    pub contributors: u16,
    /// The largest exponent: that of the lanes.
    pub exponent: Exponent,
    /// The smallest exponent, ZERO excluded.
    pub least_exponent: Exponent,
    /// The rank that came first.
    pub first_rank: u16,
    /// MISMATCHED: the rank that disagreed.
    pub other_rank: u16,
    /// MISMATCHED: its operation.
    pub other_signature: u32,
    /// The next rank that a copy of the broadcast goes to.
    pub cursor: u16,
}

impl Bank {
    const EMPTY: Self = Self {
        status: Status::Empty,
        redo: false,
        nonfinite: false,
        sequence: 0,
        seen: [0; 4],
        signature: 0,
        weight: 0,
        contributors: 0,
        exponent: Exponent::ZERO,
        least_exponent: Exponent::ZERO,
        first_rank: 0,
        other_rank: 0,
        other_signature: 0,
        cursor: 0,
    };

    /// Begins the first phase of a fragment.
    fn begin(&mut self, rank: u16, packet: &Packet<&mut [u8]>) {
        *self = Self {
            status: Status::Gathering,
            sequence: packet.sequence(),
            signature: packet.signature(),
            first_rank: rank,
            ..Self::EMPTY
        };
    }

    /// Begins the second phase: nobody seen, the largest exponent.
    fn begin_again(&mut self) {
        self.redo = true;
        self.seen = [0; 4];
        self.weight = 0;
        self.contributors = 0;
        self.least_exponent = self.exponent;
    }

    /// The difference of the largest and the smallest exponent.
    fn spread(&self) -> u32 {
        u32::from(self.exponent.to_wire().abs_diff(self.least_exponent.to_wire()))
    }

    fn has_seen(&self, rank: u16) -> bool {
        self.seen[usize::from(rank / 64)] >> (rank % 64) & 1 == 1
    }
}

/// What a packet finds in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The bank holds the packet's sequence.
    Current,
    /// The bank holds a newer one.
    Older,
    /// The bank holds an older one, or none, and may be reset.
    Free,
    /// The bank may not be reset.
    Window,
}

/// What adding a contribution led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// Others are missing.
    Gathering,
    /// The result is there.
    Done,
    /// The second phase has begun.
    Redo,
}

/// All slots of a job.
pub struct Slots {
    slots: u32,
    lanes: usize,
    workers: u16,
    format: Format,
    /// Two for each slot.
    banks: Vec<Bank>,
    /// `lanes` for each bank.
    sums: Vec<u32>,
}

impl Slots {
    /// The slots of a job, all empty; `None` if there is no memory for them. The system gives the memory of the lanes when it is
    /// first written.
    pub fn new(job: &Job) -> Option<Self> {
        let banks = 2 * job.slots as usize;
        let lanes = banks.checked_mul(job.lanes)?;
        // Asked for first, since `vec!` ends the process if it gets none.
        Vec::<Bank>::new().try_reserve_exact(banks).ok()?;
        Vec::<u32>::new().try_reserve_exact(lanes).ok()?;
        Some(Self {
            slots: job.slots,
            lanes: job.lanes,
            workers: job.worker_count(),
            format: job.format,
            banks: vec![Bank::EMPTY; banks],
            sums: vec![0; lanes],
        })
    }

    /// How many slots there are.
    pub const fn count(&self) -> u32 {
        self.slots
    }

    /// The slot of a sequence.
    pub const fn slot_of(&self, sequence: u64) -> u32 {
        (sequence % self.slots as u64) as u32
    }

    /// A bank of a slot, and its lanes.
    pub fn bank(&self, slot: u32, bank: usize) -> (&Bank, &[u32]) {
        let index = 2 * slot as usize + bank;
        (&self.banks[index], &self.sums[index * self.lanes..][..self.lanes])
    }

    /// The bank of a sequence, and its lanes.
    pub fn of(&mut self, sequence: u64) -> (&mut Bank, &mut [u32]) {
        let index = self.index(sequence);
        (&mut self.banks[index], &mut self.sums[index * self.lanes..][..self.lanes])
    }

    /// What a packet with this sequence finds (WIRE S1 to S3).
    pub fn find(&self, sequence: u64) -> Found {
        let slots = u64::from(self.slots);
        let index = self.index(sequence);
        let (bank, other) = (&self.banks[index], &self.banks[index ^ 1]);
        let is_empty = bank.status == Status::Empty;
        if !is_empty && sequence <= bank.sequence {
            return if sequence == bank.sequence { Found::Current } else { Found::Older };
        }
        let own_is_free = if is_empty {
            sequence / slots < 2
        } else {
            Some(bank.sequence) == sequence.checked_sub(2 * slots)
        };
        let previous_is_done = sequence < slots
            || (other.status == Status::Done && Some(other.sequence) == sequence.checked_sub(slots));
        if own_is_free && previous_is_done { Found::Free } else { Found::Window }
    }

    /// Gives the bank of the packet's sequence to it.
    pub fn begin(&mut self, rank: u16, packet: &Packet<&mut [u8]>) {
        self.of(packet.sequence()).0.begin(rank, packet);
    }

    /// Whether the rank's contribution is in the bank.
    pub fn has_seen(&mut self, sequence: u64, rank: u16) -> bool {
        self.of(sequence).0.has_seen(rank)
    }

    /// Adds a contribution (WIRE S4, F4, F5).
    pub fn add(&mut self, rank: u16, packet: &Packet<&mut [u8]>) -> Added {
        let (format, workers) = (self.format, self.workers);
        let exponent = Exponent::from_wire(packet.exponent()).unwrap_or(Exponent::ZERO);
        let (bank, sums) = self.of(packet.sequence());
        assert!(bank.status == Status::Gathering && !bank.has_seen(rank), "added once, while gathering");
        align_and_add(format, bank, sums, exponent, packet.body());
        bank.seen[usize::from(rank / 64)] |= 1 << (rank % 64);
        bank.contributors += 1;
        bank.weight += packet.weight();
        bank.nonfinite |= packet.flags().contains(Flags::NONFINITE);
        assert_eq!(
            u32::from(bank.contributors),
            bank.seen.iter().map(|ranks| ranks.count_ones()).sum::<u32>(),
            "everyone seen is counted once"
        );
        if bank.contributors < workers {
            return Added::Gathering;
        }
        bank.cursor = 0;
        if bank.spread() > format.guard_bits() && !bank.nonfinite {
            bank.begin_again();
            return Added::Redo;
        }
        bank.status = Status::Done;
        Added::Done
    }

    fn index(&self, sequence: u64) -> usize {
        let generation = sequence / u64::from(self.slots);
        2 * self.slot_of(sequence) as usize + (generation % 2) as usize
    }
}

/// WIRE F4: exact while the spread is within the guard bits; beyond, only the exponents are noted (F5).
fn align_and_add(format: Format, bank: &mut Bank, sums: &mut [u32], exponent: Exponent, packet: &[u8]) {
    let before = bank.exponent;
    if !exponent.is_zero() {
        bank.exponent = before.max(exponent);
        bank.least_exponent = if before.is_zero() { exponent } else { bank.least_exponent.min(exponent) };
    }
    if bank.spread() > format.guard_bits() {
        return;
    }
    if bank.contributors == 0 {
        return copy_lanes(sums, packet);
    }
    // How far the bank and the packet lie below the common exponent; a ZERO lies nowhere.
    let below = |lower: Exponent| {
        if lower.is_zero() { 0 } else { u32::from(bank.exponent.to_wire().abs_diff(lower.to_wire())) }
    };
    if below(before) > 0 {
        shift_lanes(format, sums, below(before), u32::from(bank.contributors));
    }
    add_lanes(format, sums, packet, below(exponent));
}
