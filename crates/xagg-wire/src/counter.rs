//! What an aggregator counts, for every job; index 0 of the job table counts what belongs to no job.

use crate::Reason;

/// The number of counters of a job, in the kernel program and in its twin.
pub const COUNTERS: usize = 48;

/// A counter other than those of the reasons, which have the indices 1 to 15 (see [`Reason`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Counter {
    /// Packets admitted: past WIRE H3's first sentence.
    Packets = 0,
    /// Contributions added.
    Added = 16,
    /// Contributions that were there already.
    Duplicate = 17,
    /// Packets of a sequence older than their bank's.
    Stale = 18,
    /// Final results sent to everybody.
    Broadcast = 19,
    /// Fragments whose exponents spread too far and that everybody was asked to send again.
    Redo = 20,
    /// ACKs sent.
    Ack = 21,
    /// PULLs received.
    Pull = 22,
    /// PENDINGs sent.
    Pending = 23,
    /// Results sent to one worker only, because it asked or had sent a duplicate.
    ResultAgain = 24,
    /// REJECTs sent.
    Reject = 25,
    /// WELCOMEs sent.
    Welcome = 26,
    /// Copies made of what is sent to everybody.
    Copies = 27,
    /// REJECTs that were due but not sent, since their worker had had too many (WIRE H9).
    RejectLimited = 28,
}

impl Counter {
    /// All event counters, in the order of their indices.
    pub const ALL: &'static [Self] = &[
        Self::Packets,
        Self::Added,
        Self::Duplicate,
        Self::Stale,
        Self::Broadcast,
        Self::Redo,
        Self::Ack,
        Self::Pull,
        Self::Pending,
        Self::ResultAgain,
        Self::Reject,
        Self::Welcome,
        Self::Copies,
        Self::RejectLimited,
    ];

    /// The index of the counter.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The lower-case name used in JSON and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Added => "added",
            Self::Duplicate => "duplicates",
            Self::Stale => "stale",
            Self::Broadcast => "results",
            Self::Redo => "redos",
            Self::Ack => "acks",
            Self::Pull => "pulls",
            Self::Pending => "pendings",
            Self::ResultAgain => "results_again",
            Self::Reject => "rejects",
            Self::Welcome => "welcomes",
            Self::Copies => "copies",
            Self::RejectLimited => "rejects_limited",
        }
    }
}

impl From<Reason> for usize {
    /// The index of a reason's counter.
    fn from(reason: Reason) -> Self {
        reason as usize
    }
}
