//! What a worker refuses before anything is sent; all else that it does is tested in the simulator (`crates/xagg-sim`).

use xagg_proto::worker::WorkerError;
use xagg_proto::{Job, Time, Worker};
use xagg_wire::Reduction;

const JOB: &str = "job = 5\nsecret = \"a secret for tests\"\nslots = 8\naggregator = \"10.9.0.1:9700\"\n\
                   [[worker]]\nrank = 0\naddress = \"10.9.1.1:9701\"\n";

#[test]
fn an_empty_operation_and_a_bad_weight_are_refused() {
    let job = Job::parse(JOB).expect("a job");
    let mut worker = Worker::new(&job, 0, 1).expect("a rank of the job");
    let mut refusal = |values: Vec<f32>, weight| {
        let refused = worker.submit(Time::ZERO, Box::new(values), Reduction::Sum, weight);
        refused.map_err(|failure| failure.0).expect_err("refused")
    };
    assert_eq!(refusal(vec![], 1), WorkerError::Empty);
    assert_eq!(refusal(vec![1.0], 0), WorkerError::Weight(0));
}
