//! What a packet may legally say: one variant a kind, with only the fields that the kind has (WIRE section 1).
//!
//! The lanes of a full-length body are not part of a [`Repr`]: they are written and read in place.

use crate::fixed::Exponent;
use crate::packet::packet_len;
use crate::{Cookie, Flags, Kind, Packet, Reason};

/// The largest weight of one contribution: 256 of them still sum exactly as f32.
pub const MAX_WEIGHT: u32 = 65_535;

/// Whose packet it is: the fields that every kind has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The job.
    pub job: u32,
    /// The view of the job's plan.
    pub view: u16,
    /// The worker, sender or receiver.
    pub rank: u16,
    /// The worker's secret.
    pub cookie: Cookie,
    /// Which life of the aggregator; 0 in HELLO.
    pub incarnation: u32,
}

/// Which of the sender's packets are in the aggregator's memory (WIRE H6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipts {
    /// The largest packet number receipted; 0 with an empty bitmap: none yet.
    pub largest: u32,
    /// Bit i: packet `largest` - i is receipted.
    pub bitmap: u32,
    /// The timestamp of packet `largest`, in microseconds of the worker's clock.
    pub echo: u32,
    /// How many of the sender's packets came with a mark of congestion (ECN), modulo 2^16.
    pub marks: u16,
}

impl Receipts {
    /// Notes a receipted packet (WIRE H5, H6): the rule that the kernel program follows too.
    pub fn note(&mut self, packet_number: u32, timestamp: u32) {
        let ahead = packet_number.wrapping_sub(self.largest);
        if ahead != 0 && ahead < 1 << 31 {
            self.bitmap = if ahead < 32 { self.bitmap << ahead | 1 } else { 1 };
            self.largest = packet_number;
            self.echo = timestamp;
        } else {
            let behind = self.largest.wrapping_sub(packet_number);
            if behind < 32 {
                self.bitmap |= 1 << behind;
            }
        }
    }

    /// Whether the bitmap shows this packet number as receipted.
    #[must_use]
    pub const fn contains(&self, packet_number: u32) -> bool {
        let behind = self.largest.wrapping_sub(packet_number);
        behind < 32 && self.bitmap >> behind & 1 == 1
    }
}

/// A worker's contribution to one fragment, or a partial sum of several workers' (WIRE kinds 3 and 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contribution {
    /// The fragment.
    pub sequence: u64,
    /// The fragment's slot.
    pub slot: u32,
    /// The number of this transmission.
    pub packet_number: u32,
    /// Of the second phase (WIRE F5).
    pub redo: bool,
    /// Some lane was NaN or infinite.
    pub nonfinite: bool,
    /// Wants an answer at once.
    pub ack_request: bool,
    /// The exponent of the lanes.
    pub exponent: Exponent,
    /// How many workers' contributions are in it.
    pub contributors: u16,
    /// Its (sum of) weights.
    pub weight: u32,
    /// The operation's signature.
    pub signature: u32,
    /// Microseconds of the sender's clock.
    pub timestamp: u32,
}

/// Why and about what a packet was refused (WIRE kind 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The fragment that the refused packet was about.
    pub sequence: u64,
    /// Why.
    pub reason: Reason,
    /// MISMATCH: the rank that came first.
    pub first_rank: u16,
    /// MISMATCH: the rank that disagreed.
    pub other_rank: u16,
    /// MISMATCH: the operation of the rank that came first.
    pub first_signature: u32,
    /// MISMATCH: the operation of the rank that disagreed.
    pub other_signature: u32,
}

/// What a packet says, beside whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repr {
    /// Opens a flow.
    Hello {
        /// Random and not 0.
        nonce: u64,
        /// The job's number of slots.
        slots: u32,
        /// The job's number of workers.
        workers: u16,
        /// The job's packets with lanes have a checksum.
        checksum: bool,
    },
    /// Answers HELLO.
    Welcome {
        /// The nonce of the HELLO.
        nonce: u64,
        /// Packets must be sent without segmentation offload.
        no_gso: bool,
        /// The most packets that may be without a receipt.
        grant: u32,
    },
    /// A worker's contribution.
    Gradient(Contribution),
    /// A partial sum.
    Aggregate(Contribution),
    /// The final sum of a fragment.
    Result {
        /// The fragment.
        sequence: u64,
        /// The number of this result for this worker.
        packet_number: u32,
        /// Some lane was NaN or infinite at some worker.
        nonfinite: bool,
        /// The exponent of the lanes.
        exponent: Exponent,
        /// How many contributions are in the lanes.
        contributors: u16,
        /// The sum of their weights.
        weight: u32,
        /// What has arrived of this worker's packets.
        receipts: Receipts,
    },
    /// RESULT with REDO: send this fragment again, quantised at `exponent`.
    Redo {
        /// The fragment.
        sequence: u64,
        /// The number of this result for this worker.
        packet_number: u32,
        /// The exponent of the second phase.
        exponent: Exponent,
        /// What has arrived of this worker's packets.
        receipts: Receipts,
    },
    /// Receipts only.
    Ack {
        /// What has arrived of this worker's packets.
        receipts: Receipts,
    },
    /// Asks for a result.
    Pull {
        /// The fragment.
        sequence: u64,
        /// The fragment's slot.
        slot: u32,
        /// The asker knows of the second phase.
        redo: bool,
        /// Microseconds of the sender's clock.
        timestamp: u32,
    },
    /// Answers PULL: the fragment is not complete.
    Pending {
        /// The fragment.
        sequence: u64,
        /// A bitmap of the ranks whose contribution is there.
        seen: [u64; 4],
        /// What has arrived of this worker's packets.
        receipts: Receipts,
    },
    /// Refuses a packet.
    Reject(Rejection),
}

impl Repr {
    /// Reads a packet of a job of `lanes` lanes, whose packets with lanes have a checksum or not.
    ///
    /// # Errors
    /// The reason to drop the packet: LENGTH, MAGIC, KIND, CHECKSUM or FIELD.
    pub fn parse<T: AsRef<[u8]>>(
        packet: &Packet<T>,
        lanes: usize,
        checksum: bool,
    ) -> Result<(Flow, Self), Reason> {
        let packet = Packet::new_checked(packet.bytes())?;
        let kind = packet.kind().ok_or(Reason::Kind)?;
        if packet.bytes().len() != packet_len(kind, packet.flags(), lanes) {
            return Err(Reason::Length);
        }
        if !packet.is_intact(checksum) {
            return Err(Reason::Checksum);
        }
        let flow = Flow {
            job: packet.job(),
            view: packet.view(),
            rank: packet.rank(),
            cookie: Cookie::from_wire(packet.cookie()),
            incarnation: packet.incarnation(),
        };
        Ok((flow, Self::parse_kind(&packet, kind)?))
    }

    fn parse_kind(packet: &Packet<&[u8]>, kind: Kind) -> Result<Self, Reason> {
        let (flags, sequence) = (packet.flags(), packet.sequence());
        let redo = flags.contains(Flags::REDO);
        let receipts = Receipts {
            largest: packet.largest(),
            bitmap: packet.receipts(),
            echo: packet.timestamp(),
            marks: packet.marks(),
        };
        Ok(match kind {
            Kind::Hello if sequence == 0 => return Err(Reason::Field),
            Kind::Hello => Self::Hello {
                nonce: sequence,
                slots: packet.slot(),
                workers: packet.contributors(),
                checksum: !flags.contains(Flags::NO_CHECKSUM),
            },
            Kind::Welcome => Self::Welcome {
                nonce: sequence,
                no_gso: flags.contains(Flags::NO_GSO),
                grant: packet.grant(),
            },
            Kind::Gradient => Self::Gradient(parse_contribution(packet)?),
            Kind::Aggregate => Self::Aggregate(parse_contribution(packet)?),
            Kind::Result if redo => Self::Redo {
                sequence,
                packet_number: packet.packet_number(),
                exponent: Exponent::from_wire(packet.exponent()).ok_or(Reason::Field)?,
                receipts,
            },
            Kind::Result => Self::Result {
                sequence,
                packet_number: packet.packet_number(),
                nonfinite: flags.contains(Flags::NONFINITE),
                exponent: Exponent::from_wire(packet.exponent()).ok_or(Reason::Field)?,
                contributors: packet.contributors(),
                weight: packet.weight(),
                receipts,
            },
            Kind::Ack => Self::Ack { receipts },
            Kind::Pull => Self::Pull { sequence, slot: packet.slot(), redo, timestamp: packet.timestamp() },
            Kind::Pending => Self::Pending { sequence, seen: read_seen(packet.body()), receipts },
            Kind::Reject => Self::Reject(parse_rejection(packet)?),
        })
    }

    /// The kind and the flags of the packet.
    #[must_use]
    pub fn kind_and_flags(&self) -> (Kind, Flags) {
        match *self {
            Self::Hello { checksum, .. } => (Kind::Hello, Flags::NO_CHECKSUM.when(!checksum)),
            Self::Welcome { no_gso, .. } => (Kind::Welcome, Flags::NO_GSO.when(no_gso)),
            Self::Gradient(contribution) => (Kind::Gradient, contribution.flags()),
            Self::Aggregate(contribution) => (Kind::Aggregate, contribution.flags()),
            Self::Result { nonfinite, .. } => (Kind::Result, Flags::NONFINITE.when(nonfinite)),
            Self::Redo { .. } => (Kind::Result, Flags::REDO),
            Self::Ack { .. } => (Kind::Ack, Flags::NONE),
            Self::Pull { redo, .. } => (Kind::Pull, Flags::REDO.when(redo)),
            Self::Pending { .. } => (Kind::Pending, Flags::NONE),
            Self::Reject(_) => (Kind::Reject, Flags::NONE),
        }
    }

    /// The length in bytes of the packet in a job of `lanes` lanes.
    #[must_use]
    pub fn len(&self, lanes: usize) -> usize {
        let (kind, flags) = self.kind_and_flags();
        packet_len(kind, flags, lanes)
    }

    /// Writes header and checksum, and the body of PENDING and REJECT; the lanes of a full-length body must be there already.
    /// The buffer must have exactly the packet's [`len`](Self::len). `checksum`: see [`parse`](Self::parse).
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, flow: &Flow, packet: &mut Packet<T>, checksum: bool) {
        let (kind, flags) = self.kind_and_flags();
        packet.reset_header(kind);
        packet.set_flags(flags);
        packet.set_rank(flow.rank);
        packet.set_job(flow.job);
        packet.set_view(flow.view);
        packet.set_cookie(flow.cookie.to_wire());
        packet.set_incarnation(flow.incarnation);
        self.emit_kind(packet);
        packet.seal(checksum);
    }

    fn emit_kind<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        match *self {
            Self::Hello { nonce, slots, workers, .. } => {
                packet.set_sequence(nonce);
                packet.set_slot(slots);
                packet.set_contributors(workers);
            }
            Self::Welcome { nonce, grant, .. } => {
                packet.set_sequence(nonce);
                packet.set_grant(grant);
            }
            Self::Gradient(contribution) | Self::Aggregate(contribution) => contribution.emit(packet),
            Self::Result { sequence, packet_number, exponent, contributors, weight, receipts, .. } => {
                packet.set_sequence(sequence);
                packet.set_packet_number(packet_number);
                packet.set_exponent(exponent.to_wire());
                packet.set_contributors(contributors);
                packet.set_weight(weight);
                receipts.emit(packet);
            }
            Self::Redo { sequence, packet_number, exponent, receipts } => {
                packet.set_sequence(sequence);
                packet.set_packet_number(packet_number);
                packet.set_exponent(exponent.to_wire());
                receipts.emit(packet);
            }
            Self::Ack { receipts } => receipts.emit(packet),
            Self::Pull { sequence, slot, timestamp, .. } => {
                packet.set_sequence(sequence);
                packet.set_slot(slot);
                packet.set_timestamp(timestamp);
            }
            Self::Pending { sequence, seen, receipts } => {
                packet.set_sequence(sequence);
                receipts.emit(packet);
                write_seen(seen, packet.body_mut());
            }
            Self::Reject(rejection) => rejection.emit(packet),
        }
    }
}

impl Receipts {
    /// Writes the receipts into a header.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.set_largest(self.largest);
        packet.set_receipts(self.bitmap);
        packet.set_timestamp(self.echo);
        packet.set_marks(self.marks);
    }
}

impl Contribution {
    fn flags(&self) -> Flags {
        Flags::REDO
            .when(self.redo)
            .with(Flags::NONFINITE.when(self.nonfinite))
            .with(Flags::ACK_REQUEST.when(self.ack_request))
    }

    fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.set_sequence(self.sequence);
        packet.set_packet_number(self.packet_number);
        packet.set_slot(self.slot);
        packet.set_exponent(self.exponent.to_wire());
        packet.set_contributors(self.contributors);
        packet.set_weight(self.weight);
        packet.set_signature(self.signature);
        packet.set_timestamp(self.timestamp);
    }
}

impl Rejection {
    fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.set_sequence(self.sequence);
        let body = packet.body_mut();
        body.fill(0);
        body[..4].copy_from_slice(&u32::from(self.reason as u8).to_le_bytes());
        body[4..6].copy_from_slice(&self.first_rank.to_le_bytes());
        body[6..8].copy_from_slice(&self.other_rank.to_le_bytes());
        body[8..12].copy_from_slice(&self.first_signature.to_le_bytes());
        body[12..16].copy_from_slice(&self.other_signature.to_le_bytes());
    }
}

/// The fields of GRADIENT and AGGREGATE, checked as WIRE H3 says, but for the slot, which only the job knows.
fn parse_contribution(packet: &Packet<&[u8]>) -> Result<Contribution, Reason> {
    let flags = packet.flags();
    let contributors = packet.contributors();
    let most_contributors = if packet.kind() == Some(Kind::Gradient) { 1 } else { crate::MAX_WORKERS as u16 };
    let weight = packet.weight();
    let legal = (1..=most_contributors).contains(&contributors)
        && (1..=MAX_WEIGHT * u32::from(contributors)).contains(&weight);
    if !legal {
        return Err(Reason::Field);
    }
    Ok(Contribution {
        sequence: packet.sequence(),
        slot: packet.slot(),
        packet_number: packet.packet_number(),
        redo: flags.contains(Flags::REDO),
        nonfinite: flags.contains(Flags::NONFINITE),
        ack_request: flags.contains(Flags::ACK_REQUEST),
        exponent: Exponent::from_wire(packet.exponent()).ok_or(Reason::Field)?,
        contributors,
        weight,
        signature: packet.signature(),
        timestamp: packet.timestamp(),
    })
}

fn parse_rejection(packet: &Packet<&[u8]>) -> Result<Rejection, Reason> {
    let (words, _) = packet.body().as_chunks::<4>();
    let word = |index: usize| u32::from_le_bytes(words[index]);
    let ranks = words[1];
    Ok(Rejection {
        sequence: packet.sequence(),
        reason: Reason::from_wire(word(0)).ok_or(Reason::Field)?,
        first_rank: u16::from_le_bytes([ranks[0], ranks[1]]),
        other_rank: u16::from_le_bytes([ranks[2], ranks[3]]),
        first_signature: word(2),
        other_signature: word(3),
    })
}

fn read_seen(body: &[u8]) -> [u64; 4] {
    let (words, _) = body.as_chunks::<8>();
    std::array::from_fn(|index| u64::from_le_bytes(words[index]))
}

fn write_seen(seen: [u64; 4], body: &mut [u8]) {
    let (words, _) = body.as_chunks_mut::<8>();
    for (word, ranks) in words.iter_mut().zip(seen) {
        *word = ranks.to_le_bytes();
    }
}
