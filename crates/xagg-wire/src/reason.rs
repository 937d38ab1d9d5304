//! Why a packet is refused (WIRE section 6).

use serde::Serialize;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// Why a packet was refused. The number is the one on the wire and the index of its counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[repr(u8)]
        #[serde(rename_all = "snake_case")]
        pub enum Reason { $($(#[$doc])* $name = $number,)* }

        impl Reason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The reason with this number on the wire.
            #[must_use]
            pub const fn from_wire(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }
        }
    };
}

reasons! {
    /// An IP fragment, or IP options.
    Fragment = 1,
    /// Not the exact length of the job's packets.
    Length = 2,
    /// Not XAgg, or another version of it.
    Magic = 3,
    /// Not a kind for this receiver.
    Kind = 4,
    /// Unknown job or view.
    Job = 5,
    /// The rank is not in the job, or its source address or port is not the registered one.
    Worker = 6,
    /// Wrong cookie.
    Cookie = 7,
    /// Damaged on the way.
    Checksum = 8,
    /// A field has a value that the rules do not allow.
    Field = 9,
    /// Meant for another life of the aggregator, or sent before HELLO.
    Incarnation = 10,
    /// This rank has joined already: a restarted worker.
    Nonce = 11,
    /// The job's number of slots or workers differs.
    Shape = 12,
    /// The slot's banks are not free for this sequence.
    Window = 13,
    /// Workers issued different operations.
    Mismatch = 14,
    /// A copy of a result beyond the last worker.
    Cursor = 15,
}

impl Reason {
    /// The lower-case name used in counters, logs and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fragment => "fragment",
            Self::Length => "length",
            Self::Magic => "magic",
            Self::Kind => "kind",
            Self::Job => "job",
            Self::Worker => "worker",
            Self::Cookie => "cookie",
            Self::Checksum => "checksum",
            Self::Field => "field",
            Self::Incarnation => "incarnation",
            Self::Nonce => "nonce",
            Self::Shape => "shape",
            Self::Window => "window",
            Self::Mismatch => "mismatch",
            Self::Cursor => "cursor",
        }
    }
}
