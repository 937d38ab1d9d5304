//! What a worker counts.

use serde::Serialize;

/// Counters of a worker since its start, and two gauges of its flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// GRADIENTs sent, each transmission counted.
    pub packets_sent: u64,
    /// Of these, how many repeated a fragment that had been sent before, REDOs not counted.
    pub retransmissions: u64,
    /// Packets taken for lost because later ones were receipted.
    pub losses: u64,
    /// Times that nothing was heard for so long that packets were sent again.
    pub probes: u64,
    /// PULLs sent.
    pub pulls: u64,
    /// Packets received and valid.
    pub packets_received: u64,
    /// Results received for the first time.
    pub results: u64,
    /// Results that were there already.
    pub duplicate_results: u64,
    /// Fragments that had to be sent a second time, at a common exponent.
    pub redos: u64,
    /// Fragments of results with a NaN or an infinity of some worker.
    pub nonfinite: u64,
    /// Packets received and dropped: damaged, not for this worker, not understood.
    pub dropped: u64,
    /// Packets sent that arrived with a mark of congestion.
    pub marked_sent: u64,
    /// Packets received with a mark of congestion.
    pub marked_received: u64,
    /// UDP payload sent, in bytes.
    pub bytes_sent: u64,
    /// UDP payload received, in bytes.
    pub bytes_received: u64,
    /// Operations completed.
    pub operations: u64,
    /// Smoothed round trip, in microseconds.
    pub round_trip_micros: u64,
    /// Congestion window, in packets.
    pub window: u64,
}
