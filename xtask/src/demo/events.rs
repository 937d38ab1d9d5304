//! What `train.py` prints: one JSON object a line.

use serde::{Deserialize, Serialize};

/// Something that happened at a rank.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// The training begins.
    Start(Start),
    /// A step is done.
    Step(Step),
    /// An epoch is done and the model has been tested; the same at all ranks.
    Epoch(Epoch),
    /// The training is done.
    End(End),
}

/// The training begins.
#[derive(Debug, Deserialize)]
pub struct Start {
    /// Steps of all epochs.
    pub steps: u64,
}

/// A step is done.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Step {
    /// From 1, over all epochs.
    pub step: u64,
    /// Of this rank's part of the batch.
    pub loss: f64,
    /// In which at least one bucket was being summed.
    pub comm_seconds: f64,
}

/// An epoch is done.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Epoch {
    /// From 1.
    pub epoch: u32,
    /// The mean over the epoch's batches and ranks.
    pub loss: f64,
    /// From 0 to 1.
    pub test_accuracy: f64,
}

/// The training is done.
#[derive(Clone, Debug, Deserialize)]
pub struct End {
    /// Of the whole training, tests included.
    pub seconds: f64,
    /// The mean of a step.
    pub step_seconds: f64,
    /// The mean of a step's communication.
    pub comm_seconds: f64,
    /// Of all parameters' bytes.
    pub parameters_sha256: String,
    /// What XAgg's worker has counted; none with gloo.
    pub stats: Option<WorkerStats>,
}

/// The part of a worker's counters that the demo shows.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct WorkerStats {
    /// Gradient packets, each transmission counted.
    pub packets_sent: u64,
    /// Of any kind.
    pub packets_received: u64,
    /// Gradient packets that were sent before.
    pub retransmissions: u64,
    /// Requests for lost results.
    pub pulls: u64,
    /// Fragments that were sent again at a common exponent.
    pub redos: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_train_py_are_read() {
        let lines = [
            r#"{"event": "start", "parameters": 408298, "steps": 585, "epochs": 5}"#,
            r#"{"event": "step", "epoch": 1, "step": 1, "loss": 2.3, "step_seconds": 0.1, "comm_seconds": 0.02}"#,
            r#"{"event": "epoch", "epoch": 1, "loss": 1.28, "test_accuracy": 0.8055}"#,
            r#"{"event": "end", "seconds": 30.9, "step_seconds": 0.04, "comm_seconds": 0.02, "parameters_sha256": "19", "stats": null}"#,
        ];
        let events: Vec<Event> =
            lines.iter().map(|line| serde_json::from_str(line).expect("valid")).collect();
        let [Event::Start(start), Event::Step(step), Event::Epoch(epoch), Event::End(end)] =
            events.as_slice()
        else {
            panic!("other events: {events:?}");
        };
        assert_eq!((start.steps, step.step, epoch.epoch), (585, 1, 1));
        assert!(end.stats.is_none());
    }
}
