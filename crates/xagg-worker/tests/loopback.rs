//! Real workers, a real aggregator on the udp datapath, real sockets on loopback. No privileges.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use xagg_aggregator::{Datapath, Options, RunningAggregator};
use xagg_testbed::exact::{exact_sum, integers};
use xagg_testbed::loopback;
use xagg_worker::{Client, ClientError, Job, Reduction, WorkerError};

/// A job on addresses that no other test uses.
fn job(workers: usize, lanes: usize, slots: u32, timeout: f64) -> Job {
    let network = loopback::network();
    let mut text = format!(
        "job = 1\nsecret = \"a secret for tests on loopback\"\nlanes = {lanes}\nslots = {slots}\n\
         timeout_seconds = {timeout:.3}\naggregator = \"{network}.1:9700\"\n"
    );
    for rank in 0..workers {
        text += &format!("[[worker]]\nrank = {rank}\naddress = \"{network}.{}:9701\"\n", rank + 2);
    }
    Job::parse(&text).expect("valid")
}

/// An aggregator on the udp datapath.
fn aggregator(job: &Job) -> RunningAggregator {
    let options = Options { datapath: Some(Datapath::Udp), interface: None };
    RunningAggregator::start(std::slice::from_ref(job), &options).expect("starts")
}

/// Runs `body` as every rank, each on a thread of its own.
fn as_every_rank<T: Send>(job: &Job, body: impl Fn(u16, Client) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..job.worker_count())
            .map(|rank| {
                let body = &body;
                scope.spawn(move || body(rank, Client::connect(job, rank).expect("joins")))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

fn check_exact(workers: usize, lanes: usize, slots: u32, lengths: &[usize]) {
    let job = job(workers, lanes, slots, 20.0);
    let _aggregator = aggregator(&job);
    as_every_rank(&job, |rank, client| {
        let handles: Vec<_> =
            lengths.iter().map(|length| client.all_reduce(integers(rank, *length), Reduction::Sum)).collect();
        for (handle, length) in handles.into_iter().zip(lengths) {
            let result = handle.wait().unwrap_or_else(|error| panic!("{error}"));
            assert!(result == exact_sum(job.worker_count(), *length), "rank {rank}, length {length}");
        }
    });
}

#[test]
fn sums_are_exact_for_several_numbers_of_workers() {
    for workers in [1, 2, 3, 4, 8] {
        check_exact(workers, 352, 2000, &[1, 351, 352, 353, 100_000]);
    }
}

#[test]
fn sums_are_exact_with_large_packets() {
    check_exact(4, 848, 2000, &[500_000]);
}

#[test]
fn sums_are_exact_with_very_few_slots() {
    check_exact(3, 16, 1, &[100, 16, 33]);
    check_exact(4, 352, 8, &[200_000, 352]);
}

#[test]
fn many_operations_are_in_flight_at_once() {
    check_exact(4, 352, 4000, &[1000; 200]);
}

#[test]
fn a_mean_divides_by_the_sum_of_weights() {
    let job = job(3, 16, 8, 5.0);
    let _aggregator = aggregator(&job);
    as_every_rank(&job, |rank, client| {
        let (sender, outcome) = channel();
        let values = vec![f32::from(rank) * 8.0; 20];
        let weight = [1, 2, 5][usize::from(rank)];
        client.all_reduce_with(Box::new(values), Reduction::Mean, weight, move |outcome| {
            sender
                .send(outcome.map(|mut buffer| (*buffer).as_mut().to_vec()).map_err(|(error, _)| error))
                .expect("heard");
        });
        // (0 + 8 + 16) / (1 + 2 + 5): a weight says how much the values already are a sum of (WIRE F6).
        assert_eq!(outcome.recv_timeout(Duration::from_secs(5)), Ok(Ok(vec![3.0; 20])));
    });
}

#[test]
fn a_nan_of_one_rank_makes_its_fragment_nan_at_all_ranks_and_no_other() {
    let job = job(2, 16, 8, 5.0);
    let _aggregator = aggregator(&job);
    as_every_rank(&job, |rank, client| {
        let mut values = vec![1.0; 48];
        values[20] = if rank == 1 { f32::NAN } else { 1.0 };
        let result = client.all_reduce(values, Reduction::Sum).wait().expect("completes");
        let (first, rest) = result.split_at(16);
        let (second, third) = rest.split_at(16);
        assert_eq!((first, third), (&[2.0; 16][..], &[2.0; 16][..]));
        assert!(second.iter().all(|value| value.is_nan()), "{second:?}");
        assert_eq!(client.stats().nonfinite, 1);
    });
}

#[test]
fn magnitudes_beyond_the_guard_bits_are_sent_again_and_summed_alike() {
    let job = job(2, 16, 8, 5.0);
    let _aggregator = aggregator(&job);
    let results = as_every_rank(&job, |rank, client| {
        let values = vec![if rank == 0 { 1.0 } else { 1_048_576.0 }; 40];
        let result = client.all_reduce(values, Reduction::Sum).wait().expect("completes");
        assert_eq!(client.stats().redos, 3, "one for each fragment");
        result
    });
    assert_eq!(results[0], vec![1_048_577.0; 40]);
    assert_eq!(results[0], results[1]);
}

#[test]
fn a_callback_that_panics_leaves_nobody_waiting() {
    let job = job(2, 16, 8, 30.0);
    let _aggregator = aggregator(&job);
    let [first, second] = [0, 1].map(|rank| Client::connect(&job, rank).expect("joins"));
    second.all_reduce_with(Box::new(vec![1.0_f32; 5]), Reduction::Sum, 1, |_| {
        panic!("a mistake of the caller")
    });
    // Rank 0 never issues operation 1.
    let waiting = second.all_reduce(vec![1.0; 5], Reduction::Sum);
    let start = Instant::now();
    first.all_reduce(vec![1.0; 5], Reduction::Sum).wait().expect("completes");
    for handle in [waiting, second.all_reduce(vec![1.0; 5], Reduction::Sum)] {
        let error = handle.wait().expect_err("the thread is gone").to_string();
        assert!(error.starts_with("rank 1:") && error.contains("ended unexpectedly"), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_callback_may_hold_the_last_client() {
    let job = job(1, 16, 8, 5.0);
    let _aggregator = aggregator(&job);
    let client = Arc::new(Client::connect(&job, 0).expect("joins"));
    let (sender, dropped) = channel();
    let (let_go, may_drop) = channel::<()>();
    let held = Arc::clone(&client);
    client.all_reduce_with(Box::new(vec![1.0_f32; 5]), Reduction::Sum, 1, move |_| {
        may_drop.recv_timeout(Duration::from_secs(5)).expect("let go");
        drop(held);
        sender.send(()).expect("heard");
    });
    drop(client);
    let_go.send(()).expect("waits");
    dropped.recv_timeout(Duration::from_secs(5)).expect("the client is dropped on its own thread");
}

#[test]
fn a_handle_says_whom_it_waits_for_and_the_client_how_long() {
    const LATE: Duration = Duration::from_secs(1);
    let job = job(3, 16, 100, 20.0);
    let _aggregator = aggregator(&job);
    as_every_rank(&job, |rank, client| {
        if rank == 2 {
            thread::sleep(LATE);
        }
        let mut handle = client.all_reduce(vec![1.0; 1000], Reduction::Sum);
        let mut named = vec![];
        let result = loop {
            match handle.wait_timeout(Duration::from_millis(10)) {
                Ok(result) => break result,
                Err(unfinished) => handle = unfinished,
            }
            let waits_for = handle.waiting_for();
            named = if waits_for.is_empty() { named } else { waits_for };
        };
        assert_eq!(result.expect("completes"), vec![3.0; 1000]);
        assert!(client.waits().now.is_empty(), "nothing is left to wait for");
        if rank != 2 {
            assert_eq!(named, [2], "rank {rank}");
            let spent = client.waits().spent;
            let longest = spent.iter().max_by_key(|(_, spent)| *spent);
            assert!(matches!(longest, Some((2, spent)) if *spent > LATE / 2), "rank {rank}: {spent:?}");
        }
    });
}

#[test]
fn a_handle_can_be_awaited_and_polled() {
    let job = job(1, 16, 8, 5.0);
    let _aggregator = aggregator(&job);
    let client = Client::connect(&job, 0).expect("joins");
    let handle = client.all_reduce(vec![2.0; 5], Reduction::Mean);
    let Ok(outcome) = handle.wait_timeout(Duration::from_secs(5)) else { panic!("still not done") };
    assert_eq!(outcome, Ok(vec![2.0; 5]));
    assert_eq!(client.stats().operations, 1);
}

#[test]
fn without_an_aggregator_joining_fails_within_the_timeout_and_says_what_to_check() {
    let job = job(1, 16, 8, 0.5);
    let start = Instant::now();
    let error = Client::connect(&job, 0).expect_err("nobody there").to_string();
    assert!(start.elapsed() < Duration::from_secs(3));
    assert!(
        error.contains("no answer") && error.contains("HELLO") && error.contains("same job file"),
        "{error}"
    );
}

#[test]
fn an_address_of_another_machine_and_one_in_use_are_told_apart() {
    let mut elsewhere = job(1, 16, 8, 0.5);
    elsewhere.workers[0] = "192.0.2.1:9701".parse().expect("address");
    let error = Client::connect(&elsewhere, 0).expect_err("not ours").to_string();
    assert!(error.contains("Start each rank on the machine that has its address"), "{error}");

    let taken = job(1, 16, 8, 0.5);
    let _holder = UdpSocket::bind(taken.workers[0]).expect("binds");
    let error = Client::connect(&taken, 0).expect_err("in use").to_string();
    assert!(error.contains("another process running as this rank"), "{error}");
}

#[test]
fn a_restarted_worker_is_refused() {
    let job = job(1, 16, 8, 2.0);
    let _aggregator = aggregator(&job);
    drop(Client::connect(&job, 0).expect("joins"));
    let error = Client::connect(&job, 0).expect_err("has joined already").to_string();
    assert!(error.contains("joined the job already") && error.contains("raise `view`"), "{error}");
}

#[test]
fn a_job_file_with_another_shape_is_refused() {
    let job = job(1, 16, 8, 2.0);
    let _aggregator = aggregator(&job);
    let mut other = job.clone();
    other.slots = 9;
    let error = Client::connect(&other, 0).expect_err("another number of slots").to_string();
    assert!(error.contains("another number of slots"), "{error}");
    let mut other = job.clone();
    other.workers.push(other.workers[0]);
    let error = Client::connect(&other, 0).expect_err("another number of workers").to_string();
    assert!(error.contains("another number of slots or workers"), "{error}");
    let mut other = job.clone();
    other.checksum = false;
    let error = Client::connect(&other, 0).expect_err("without checksums").to_string();
    assert!(error.contains("another `checksum`") && error.contains("the same file"), "{error}");
    Client::connect(&job, 0).expect("who was refused has not taken the rank");
}

#[test]
fn different_lengths_are_an_error_with_both_signatures_on_both_ranks() {
    let job = job(2, 16, 8, 5.0);
    let _aggregator = aggregator(&job);
    let errors = as_every_rank(&job, |rank, client| {
        let values = vec![1.0; 100 + usize::from(rank)];
        client.all_reduce(values, Reduction::Sum).wait().expect_err("must fail")
    });
    let mut signatures = vec![];
    for error in &errors {
        let WorkerError::Mismatch { first_signature, other_signature, own_signature, .. } = error else {
            panic!("{error}")
        };
        let text = error.to_string();
        assert!(text.contains(&format!("{first_signature:08x}")), "{text}");
        assert!(text.contains(&format!("{other_signature:08x}")), "{text}");
        signatures.push(*own_signature);
    }
    assert_ne!(signatures[0], signatures[1]);
}

#[test]
fn a_rank_that_never_arrives_is_named() {
    let job = job(3, 16, 8, 1.0);
    let _aggregator = aggregator(&job);
    let start = Instant::now();
    let rank = |rank| {
        let client = Client::connect(&job, rank).expect("joins");
        client.all_reduce(vec![1.0; 100], Reduction::Sum).wait().expect_err("rank 2 is missing").to_string()
    };
    let errors =
        thread::scope(|scope| [0, 1].map(|id| scope.spawn(move || rank(id))).map(|rank| rank.join()));
    assert!(start.elapsed() < Duration::from_secs(4));
    for (id, error) in errors.into_iter().enumerate() {
        let error = error.expect("no panic");
        let parts = [format!("rank {id}"), "operation 0".to_owned(), "waiting for results".to_owned()];
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        assert!(error.contains("the contribution of rank 2 is missing"), "{error}");
    }
}

#[test]
fn the_end_of_the_aggregator_ends_operations_within_the_timeout() {
    let job = job(2, 16, 8, 2.0);
    let running = aggregator(&job);
    let client = Client::connect(&job, 0).expect("joins");
    let handle = client.all_reduce(vec![1.0; 100], Reduction::Sum);
    thread::sleep(Duration::from_millis(200));
    drop(running);
    let start = Instant::now();
    let error = handle.wait().expect_err("the aggregator is gone").to_string();
    assert!(start.elapsed() < Duration::from_secs(4));
    assert!(error.contains("rank 0, operation 0") && error.contains("phase:"), "{error}");
}

#[test]
fn a_restarted_aggregator_is_noticed() {
    let job = job(2, 16, 8, 5.0);
    let running = aggregator(&job);
    let client = Client::connect(&job, 0).expect("joins");
    drop(running);
    let _again = aggregator(&job);
    let error =
        client.all_reduce(vec![1.0; 100], Reduction::Sum).wait().expect_err("another life").to_string();
    assert!(error.contains("has been started again"), "{error}");
}

#[test]
fn closing_a_client_fails_what_is_in_progress() {
    let job = job(2, 16, 8, 30.0);
    let _aggregator = aggregator(&job);
    let client = Client::connect(&job, 0).expect("joins");
    let handle = client.all_reduce(vec![1.0; 100], Reduction::Sum);
    drop(client);
    let error = handle.wait().expect_err("closed").to_string();
    assert!(error.contains("has been closed"), "{error}");
}

#[test]
fn an_empty_tensor_is_refused() {
    let job = job(1, 16, 8, 5.0);
    let _aggregator = aggregator(&job);
    let client = Client::connect(&job, 0).expect("joins");
    assert_eq!(client.all_reduce(vec![], Reduction::Sum).wait(), Err(WorkerError::Empty));
    let Err(ClientError::Worker(error)) = Client::connect(&job, 7) else { panic!("rank 7 of 1") };
    assert_eq!(error.to_string(), "rank 7 is not in the job: its ranks are 0 to 0");
}
