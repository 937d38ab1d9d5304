//! Faults of the network under real jobs, made by a kernel program at the switch's ports: every sum is exact, and what was done
//! to packets is seen, counted and repaired. Needs root.

mod common;

#[path = "faults/session.rs"]
mod session;

use std::time::Duration;

use session::{Phase, Session, Totals, on_every_datapath};
use xagg_aggregator::Datapath;
use xagg_testbed::{Direction, Faults, LossBurst, Rate, Reorder, skip_unless_root};

/// Nothing happens.
const NONE: Faults = Faults {
    drop_ppm: 0,
    burst: None,
    duplicate_ppm: 0,
    flip_headers_ppm: 0,
    flip_payload_ppm: 0,
    flip_bits: 0,
    reorder: None,
    mark_ppm: 0,
    queue: None,
};

/// One fault in each direction alone, and in both at once.
fn each_way(faults: &Faults, operations: usize) -> [Phase; 3] {
    [(faults, &NONE), (&NONE, faults), (faults, faults)].map(|(from_workers, to_workers)| Phase {
        from_workers: from_workers.clone(),
        to_workers: to_workers.clone(),
        operations,
    })
}

/// Lost GRADIENTs are sent again, lost RESULTs asked for.
fn check_losses(phase: &Phase, seen: &Totals) {
    let (lost, repaired) = (seen.of("from.lost"), seen.of("worker.retransmissions"));
    assert!(lost > 0 || phase.from_workers == NONE, "no GRADIENT was lost: {seen}");
    assert!(repaired > 0 || phase.from_workers == NONE, "no GRADIENT was sent again: {seen}");
    let (lost, repaired) = (seen.of("to.lost"), seen.of("aggregator.results_again"));
    assert!(lost > 0 || phase.to_workers == NONE, "no RESULT was lost: {seen}");
    assert!(repaired > 0 || phase.to_workers == NONE, "no RESULT was sent again: {seen}");
}

#[test]
fn losses_of_a_thousandth_to_a_tenth_each_way_are_repaired() {
    // So many operations that a thousandth is several packets.
    let phases = [(1000, 10), (10_000, 2), (100_000, 2)]
        .map(|(drop_ppm, operations)| each_way(&Faults { drop_ppm, ..NONE }, operations));
    let name = "losses_of_a_thousandth_to_a_tenth_each_way_are_repaired";
    on_every_datapath(name, phases.as_flattened(), check_losses);
}

#[test]
fn losses_in_bursts_are_repaired() {
    // A burst lasts for so many packets, however long that takes: long ones would outlast the timeout of a rank that only probes.
    let burst = Some(LossBurst { enter_ppm: 10_000, leave_ppm: 250_000 });
    on_every_datapath("losses_in_bursts_are_repaired", &each_way(&Faults { burst, ..NONE }, 4), check_losses);
}

#[test]
fn packets_that_arrive_twice_count_once() {
    let phases = each_way(&Faults { duplicate_ppm: 50_000, ..NONE }, 2);
    on_every_datapath("packets_that_arrive_twice_count_once", &phases, |phase, seen| {
        if phase.from_workers != NONE {
            // A duplicate of the GRADIENT that completed a fragment gets the result again.
            let noticed =
                ["duplicates", "stale", "results_again"].map(|name| seen.of(&format!("aggregator.{name}")));
            assert!(seen.of("from.duplicated") > 0 && noticed.iter().sum::<u64>() > 0, "{seen}");
        }
        if phase.to_workers != NONE {
            assert!(seen.of("to.duplicated") > 0 && seen.of("worker.duplicate_results") > 0, "{seen}");
        }
    });
}

#[test]
fn packets_that_are_overtaken_change_nothing() {
    let reorder = Some(Reorder { ppm: 50_000, delay: Duration::from_millis(2) });
    let phases = each_way(&Faults { reorder, ..NONE }, 2);
    on_every_datapath("packets_that_are_overtaken_change_nothing", &phases, |phase, seen| {
        assert!(seen.of("from.reordered") > 0 || phase.from_workers == NONE, "{seen}");
        assert!(seen.of("to.reordered") > 0 || phase.to_workers == NONE, "{seen}");
    });
}

#[test]
fn damaged_packets_are_counted_dropped_and_sent_again() {
    let phases = each_way(&Faults { flip_payload_ppm: 20_000, flip_bits: 3, ..NONE }, 2);
    on_every_datapath("damaged_packets_are_counted_dropped_and_sent_again", &phases, |phase, seen| {
        for (faults, way, receiver) in
            [(&phase.from_workers, "from", "aggregator"), (&phase.to_workers, "to", "worker")]
        {
            // The network stack may find it out before XAgg does; either counts it.
            let [noticed, checksum] =
                ["dropped", "udp_checksum"].map(|name| seen.of(&format!("{receiver}.{name}")));
            let damaged = seen.of(&format!("{way}.flipped"));
            if *faults == NONE {
                assert_eq!((noticed, checksum, damaged), (0, 0, 0), "{way}: {seen}");
            } else {
                assert!(noticed + checksum > 0 && noticed + checksum <= damaged, "{way}: {seen}");
            }
        }
        assert!(seen.of("worker.retransmissions") > 0 || phase.from_workers == NONE, "{seen}");
        assert!(seen.of("aggregator.results_again") > 0 || phase.to_workers == NONE, "{seen}");
    });
}

#[test]
fn packets_with_damaged_network_headers_do_no_harm() {
    let phases = each_way(&Faults { flip_headers_ppm: 20_000, flip_bits: 2, ..NONE }, 2);
    on_every_datapath("packets_with_damaged_network_headers_do_no_harm", &phases, |phase, seen| {
        assert!(seen.of("from.flipped") > 0 || phase.from_workers == NONE, "{seen}");
        assert!(seen.of("to.flipped") > 0 || phase.to_workers == NONE, "{seen}");
    });
}

#[test]
fn marks_of_congestion_reach_the_sender_and_change_no_sum() {
    let phases = each_way(&Faults { mark_ppm: 100_000, ..NONE }, 2);
    on_every_datapath("marks_of_congestion_reach_the_sender_and_change_no_sum", &phases, |_, seen| {
        for (way, counter) in [("from", "marked_sent"), ("to", "marked_received")] {
            let (marked, heard) = (seen.of(&format!("{way}.marked")), seen.of(&format!("worker.{counter}")));
            assert!(heard <= marked && (heard > 0) == (marked > 0), "{way}: {seen}");
        }
        assert!(seen.of("from.marked") + seen.of("to.marked") > 0, "{seen}");
    });
}

#[test]
fn all_faults_together_change_no_sum() {
    let all = Faults {
        drop_ppm: 10_000,
        burst: Some(LossBurst { enter_ppm: 2000, leave_ppm: 250_000 }),
        duplicate_ppm: 20_000,
        flip_headers_ppm: 10_000,
        flip_payload_ppm: 10_000,
        flip_bits: 3,
        reorder: Some(Reorder { ppm: 20_000, delay: Duration::from_millis(2) }),
        mark_ppm: 50_000,
        queue: None,
    };
    let [.., both_ways] = each_way(&all, 4);
    on_every_datapath("all_faults_together_change_no_sum", &[both_ways], |_, seen| {
        for way in ["from", "to"] {
            for fault in ["lost", "duplicated", "flipped", "reordered", "marked"] {
                assert!(seen.of(&format!("{way}.{fault}")) > 0, "{way}.{fault}: {seen}");
            }
        }
    });
}

/// A queue of ten packets before the aggregator, into which four workers push as fast as they can.
#[test]
fn what_a_full_queue_before_the_aggregator_drops_is_repaired() {
    let name = "what_a_full_queue_before_the_aggregator_drops_is_repaired";
    if skip_unless_root(name) {
        return;
    }
    for datapath in Datapath::LADDER {
        let session = Session::start(datapath);
        let (bed, node) = (&session.bed, session.bed.aggregator(0));
        bed.limit(node, Direction::ToNode, Rate::mbit(100), 15_000).expect("sets");
        let before = session.totals();
        session.sum(2);
        let (drops, seen) = (bed.queue_drops().expect("counts"), session.totals().since(&before));
        assert!(drops > 0 && seen.of("worker.retransmissions") > 0, "{datapath}: {drops} drops, {seen}");
    }
}
