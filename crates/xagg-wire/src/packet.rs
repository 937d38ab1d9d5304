//! The 64-byte header as a view over a buffer (WIRE section 1), in the manner of a cursor-free wire format:
//! every field has a fixed place, so reading one is a load and writing one is a store.

use crate::vectorised::vectorised;
use crate::{Reason, full_len};

/// The length of the header, in bytes.
pub const HEADER_LEN: usize = 64;

/// The length of the body of PENDING and REJECT, in bytes.
pub const SHORT_BODY_LEN: usize = 32;

/// `XG`, as a little-endian number.
pub const MAGIC: u16 = 0x4758;

/// The version of the protocol that this crate speaks.
pub const VERSION: u8 = 1;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Opens a flow.
    Hello = 1,
    /// Answers HELLO.
    Welcome = 2,
    /// A worker's contribution to a fragment.
    Gradient = 3,
    /// A partial sum, on its way to a parent aggregator.
    Aggregate = 4,
    /// The sum of everybody's contributions, or the request to send them again (REDO).
    Result = 5,
    /// Receipts only.
    Ack = 6,
    /// Asks for the result of a fragment.
    Pull = 7,
    /// Answers PULL: not finished; who has contributed.
    Pending = 8,
    /// Refuses, with a reason.
    Reject = 9,
}

impl Kind {
    /// The kind with this number on the wire.
    #[must_use]
    pub const fn from_wire(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Hello,
            2 => Self::Welcome,
            3 => Self::Gradient,
            4 => Self::Aggregate,
            5 => Self::Result,
            6 => Self::Ack,
            7 => Self::Pull,
            8 => Self::Pending,
            9 => Self::Reject,
            _ => return None,
        })
    }
}

/// The bits of the header's `flags`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u16);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// The sender of this GRADIENT wants an answer at once.
    pub const ACK_REQUEST: Self = Self(1);
    /// Some lane was NaN or infinite at some worker.
    pub const NONFINITE: Self = Self(2);
    /// Of, or asking for, the second phase.
    pub const REDO: Self = Self(4);
    /// The aggregator cannot take packets that were sent with segmentation offload.
    pub const NO_GSO: Self = Self(8);
    /// In the job file of this HELLO's sender, packets with lanes have no checksum.
    pub const NO_CHECKSUM: Self = Self(16);

    /// These flags and those of `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// `self` if `condition`, else no flag.
    #[must_use]
    pub const fn when(self, condition: bool) -> Self {
        if condition { self } else { Self::NONE }
    }

    /// Whether all flags of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The flags as they stand in the header.
    #[must_use]
    pub const fn to_wire(self) -> u16 {
        self.0
    }

    /// Flags read from a header, unknown bits included.
    #[must_use]
    pub const fn from_wire(bits: u16) -> Self {
        Self(bits)
    }
}

/// A packet in a buffer. [`Packet::new_checked`] proves that there is a whole header of this protocol; a view made with
/// [`Packet::new_unchecked`] panics on access if the buffer is shorter than the header.
#[derive(Clone, Copy, Debug)]
pub struct Packet<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// A view of a buffer that is known to hold a header, for instance because it is about to be written.
    pub const fn new_unchecked(buffer: T) -> Self {
        Self { buffer }
    }

    /// A view of a buffer that begins with a header of this protocol and version.
    ///
    /// # Errors
    /// [`Reason::Length`] if the buffer is shorter than a header, [`Reason::Magic`] if it is not of this protocol.
    pub fn new_checked(buffer: T) -> Result<Self, Reason> {
        let packet = Self { buffer };
        if packet.buffer.as_ref().len() < HEADER_LEN {
            return Err(Reason::Length);
        }
        if packet.u16_at(0) != MAGIC || packet.buffer.as_ref()[2] != VERSION {
            return Err(Reason::Magic);
        }
        Ok(packet)
    }

    /// The kind, if it is one of this version.
    pub fn kind(&self) -> Option<Kind> {
        Kind::from_wire(self.buffer.as_ref()[3])
    }

    /// The flags, unknown bits included.
    pub fn flags(&self) -> Flags {
        Flags(self.u16_at(4))
    }

    /// The checksum that the packet carries.
    pub fn checksum(&self) -> u32 {
        self.u32_at(60)
    }

    /// The checksum that the packet ought to carry (WIRE P3).
    pub fn computed_checksum(&self) -> u32 {
        let bytes = self.buffer.as_ref();
        let words = bytes.len().div_ceil(4) as u64;
        // One pass over all, since whole rows of words are fastest; then its own word is taken out.
        let own = weigh(words, CHECKSUM_WORD, self.checksum().into());
        fold(weighted_sum(bytes, words).wrapping_sub(own))
    }

    /// Whether the checksum is right: 0 if the packet has none. `checksum` says whether the job's packets with lanes have one (WIRE P7).
    pub fn is_intact(&self, checksum: bool) -> bool {
        let expected = if self.is_bare(checksum) { 0 } else { self.computed_checksum() };
        self.checksum() == expected
    }

    /// Whether the packet has no checksum, since it has lanes and the job's packets with lanes have none.
    fn is_bare(&self, checksum: bool) -> bool {
        !checksum && self.kind().is_some_and(|kind| has_lanes(kind, self.flags()))
    }

    /// All bytes: header and body.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.as_ref()
    }

    /// What follows the header.
    pub fn body(&self) -> &[u8] {
        &self.buffer.as_ref()[HEADER_LEN..]
    }

    fn array_at<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.buffer.as_ref()[offset..offset + N]);
        bytes
    }

    fn u16_at(&self, offset: usize) -> u16 {
        u16::from_le_bytes(self.array_at(offset))
    }

    fn u32_at(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.array_at(offset))
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Makes the header one of `kind` with all other fields 0.
    pub fn reset_header(&mut self, kind: Kind) {
        let header = &mut self.buffer.as_mut()[..HEADER_LEN];
        header.fill(0);
        header[..2].copy_from_slice(&MAGIC.to_le_bytes());
        header[2] = VERSION;
        header[3] = kind as u8;
    }

    /// Sets the kind.
    pub fn set_kind(&mut self, kind: Kind) {
        self.buffer.as_mut()[3] = kind as u8;
    }

    /// Sets the flags.
    pub fn set_flags(&mut self, flags: Flags) {
        self.set(4, flags.0.to_le_bytes());
    }

    /// Computes and sets the checksum; to be called last.
    pub fn fill_checksum(&mut self) {
        let checksum = self.computed_checksum();
        self.set(60, checksum.to_le_bytes());
    }

    /// Sets the checksum that a packet of the job has: see [`is_intact`](Self::is_intact). To be called last.
    pub fn seal(&mut self, checksum: bool) {
        if self.is_bare(checksum) {
            self.set(60, 0_u32.to_le_bytes());
        } else {
            self.fill_checksum();
        }
    }

    /// All bytes: header and body.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut()
    }

    /// What follows the header.
    pub fn body_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.as_mut()[HEADER_LEN..]
    }

    fn set<const N: usize>(&mut self, offset: usize, bytes: [u8; N]) {
        self.buffer.as_mut()[offset..offset + N].copy_from_slice(&bytes);
    }
}

/// Reads and writes of the plain fields: name, setter, type, offset.
macro_rules! fields {
    ($($(#[$doc:meta])* $get:ident, $set:ident, $type:ty, $offset:literal;)*) => {
        impl<T: AsRef<[u8]>> Packet<T> {
            $($(#[$doc])* pub fn $get(&self) -> $type { <$type>::from_le_bytes(self.array_at($offset)) })*
        }
        impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
            $(#[doc = concat!("Sets [`", stringify!($get), "`](Self::", stringify!($get), ").")]
            pub fn $set(&mut self, value: $type) { self.set($offset, value.to_le_bytes()); })*
        }
    };
}

fields! {
    /// The rank that sent the packet, or that it is for.
    rank, set_rank, u16, 6;
    /// The job.
    job, set_job, u32, 8;
    /// The view of the job's plan.
    view, set_view, u16, 12;
    /// Towards the worker: how many of its packets came with a mark of congestion, modulo 2^16.
    marks, set_marks, u16, 14;
    /// The worker's secret.
    cookie, set_cookie, u64, 16;
    /// The fragment's number within the job; HELLO and WELCOME: the nonce.
    sequence, set_sequence, u64, 24;
    /// GRADIENT: the number of this transmission within the flow; RESULT: of this result for this worker.
    packet_number, set_packet_number, u32, 32;
    /// Towards the aggregator: the fragment's slot; HELLO: the number of slots.
    slot, set_slot, u32, 36;
    /// Towards the worker: the largest packet number receipted. Shares its place with [`slot`](Self::slot).
    largest, set_largest, u32, 36;
    /// The exponent of the lanes.
    exponent, set_exponent, i16, 40;
    /// How many contributions are in the lanes; HELLO: the number of workers.
    contributors, set_contributors, u16, 42;
    /// The (sum of) weights.
    weight, set_weight, u32, 44;
    /// WELCOME: the most packets that may be without a receipt. Shares its place with [`weight`](Self::weight).
    grant, set_grant, u32, 44;
    /// Towards the aggregator: the operation's signature.
    signature, set_signature, u32, 48;
    /// Towards the worker: which packet numbers are receipted. Shares its place with [`signature`](Self::signature).
    receipts, set_receipts, u32, 48;
    /// When it was sent, in microseconds of the sender's clock; towards the worker, an echo of that.
    timestamp, set_timestamp, u32, 52;
    /// Which life of the aggregator.
    incarnation, set_incarnation, u32, 56;
}

/// The length that a packet of a kind has in a job of `lanes` lanes (WIRE P2), in bytes.
#[must_use]
pub const fn packet_len(kind: Kind, flags: Flags, lanes: usize) -> usize {
    match kind {
        Kind::Result if flags.contains(Flags::REDO) => HEADER_LEN,
        Kind::Hello | Kind::Welcome | Kind::Gradient | Kind::Aggregate | Kind::Result | Kind::Pull => {
            full_len(lanes)
        }
        Kind::Ack => HEADER_LEN,
        Kind::Pending | Kind::Reject => HEADER_LEN + SHORT_BODY_LEN,
    }
}

/// Whether a packet of this kind carries lanes that are not 0.
const fn has_lanes(kind: Kind, flags: Flags) -> bool {
    match kind {
        Kind::Gradient | Kind::Aggregate => true,
        Kind::Result => !flags.contains(Flags::REDO),
        _ => false,
    }
}

/// The sum of the 32-bit little-endian words of `bytes`, each times 2 k + 1 where k counts down from `first`; 1 to 3 bytes at
/// the end count as if followed by zeros.
fn weighted_sum(bytes: &[u8], first: u64) -> u64 {
    let (rows, rest) = bytes.as_chunks::<{ 4 * COLUMNS }>();
    let behind_rows = first.wrapping_sub((rows.len() * COLUMNS) as u64);
    let weighted = |(index, bytes): (u64, &[u8])| {
        let mut word = [0; 4];
        word[..bytes.len()].copy_from_slice(bytes);
        weigh(behind_rows, index, u32::from_le_bytes(word).into())
    };
    (0..).zip(rest.chunks(4)).map(weighted).fold(sum_of_rows(rows, behind_rows), u64::wrapping_add)
}

/// The place of the checksum among the words of a packet.
const CHECKSUM_WORD: u64 = 15;

/// How many words [`column_sums`] takes at a time.
const COLUMNS: usize = 8;

/// The weighted sum of whole rows of words. k is `behind` for the first word after the rows.
fn sum_of_rows(rows: &[[u8; 4 * COLUMNS]], behind: u64) -> u64 {
    let [plain, counted] = column_sums(rows);
    (0..COLUMNS).fold(0, |sum: u64, column| {
        let by_row = (2 * COLUMNS as u64).wrapping_mul(counted[column]);
        sum.wrapping_add(by_row).wrapping_add(weigh(behind, column as u64, plain[column]))
    })
}

/// The sums of the columns, and the sums of what these were after each row: they count a word once for each row from its own on, so
/// no word is multiplied. Not inlined: together with what comes after it, the compiler does not vectorise it.
#[inline(never)]
fn column_sums(rows: &[[u8; 4 * COLUMNS]]) -> [[u64; COLUMNS]; 2] {
    vectorised(move || {
        let (mut plain, mut counted) = ([0_u64; COLUMNS], [0_u64; COLUMNS]);
        for row in rows {
            for (column, word) in row.as_chunks::<4>().0.iter().enumerate() {
                plain[column] += u64::from(u32::from_le_bytes(*word));
                counted[column] += plain[column];
            }
        }
        [plain, counted]
    })
}

/// `sum` times 2 k + 1, with k = `first` - `index`. All of it wraps, also below 0; the sum of a packet does not.
fn weigh(first: u64, index: u64, sum: u64) -> u64 {
    first.wrapping_sub(index).wrapping_mul(2).wrapping_add(1).wrapping_mul(sum)
}

/// Folds a sum of words to 32 bits with end-around carry.
fn fold(mut sum: u64) -> u32 {
    while sum >> 32 != 0 {
        sum = (sum & u64::from(u32::MAX)) + (sum >> 32);
    }
    u32::try_from(sum).unwrap_or(u32::MAX)
}
