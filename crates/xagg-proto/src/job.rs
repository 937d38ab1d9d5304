//! A job: what its workers and its aggregator all know of it, described by one TOML file.
//!
//! ```toml
//! job = 1                            # which job; 0 to 4294967295
//! view = 1                           # raise it to run the job again on the same aggregator
//! secret = "change me, 16 or more"   # whoever knows it can speak for any worker
//! lanes = 352                        # f32 values per packet; 352 fits MTU 1500 (the default), 848 fits MTU 3498; over IPv6 336 and 832
//! gradient_elements = 25_000_000     # values that are in flight in one step, or `slots = N` fragments
//! checksum = true                    # false: gradients and results go without a checksum, a little faster; see WIRE P7 (true is the default)
//! timeout_seconds = 60               # no operation waits longer than this without progress (60 is the default)
//! aggregator = "10.0.0.100:9700"     # or an IPv6 address: "[fd00::100]:9700"; all members have the same version of IP
//!
//! [[worker]]
//! rank = 0
//! address = "10.0.0.1:9701"
//!
//! [[worker]]
//! rank = 1
//! address = "10.0.0.2:9701"
//! rate = "250mbit"                   # it never sends faster than this; without, as fast as congestion control finds
//! ```

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;
use xagg_wire::fixed::{Format, TooManyWorkers};
use xagg_wire::{Cookie, Family, LANE_BLOCK, Rate, full_len};

/// The lanes of a packet are what fits this MTU, in bytes, where the file does not say.
const DEFAULT_MTU: usize = 1500;
/// The most slots of a job: 2^26 fragments of 1408 bytes are 94 GB of gradient.
pub const MAX_SLOTS: u32 = 1 << 26;
/// Slots beyond the gradient's own fragments: an operation (a DDP bucket) begins on a fresh fragment.
const SLOTS_FOR_TAILS: u64 = 64;
const DEFAULT_TIMEOUT_SECONDS: f64 = 60.0;
const LEAST_SECRET: usize = 16;
/// A worker that sends fewer packets a second than this spends whole timers between two.
const LEAST_PACKET_RATE: f64 = 1000.0;

/// A job whose every value has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Which job.
    pub id: u32,
    /// Which view of it; nothing of another view is accepted.
    pub view: u16,
    /// Values per packet: a multiple of 16, at most [`Family::max_lanes`].
    pub lanes: usize,
    /// Fragments that fit the aggregator's memory at the same time.
    pub slots: u32,
    /// Whether packets with lanes, gradients and results, have a checksum; all others always have one.
    pub checksum: bool,
    /// The longest time that an operation goes without progress before it fails.
    pub timeout: Duration,
    /// Where the aggregator listens.
    pub aggregator: SocketAddr,
    /// Where the worker of each rank sends from and listens; index = rank.
    pub workers: Vec<SocketAddr>,
    /// What each worker's network card may send, by rank, where the file says so.
    pub rates: Vec<Option<Rate>>,
    /// How values become lanes.
    pub format: Format,
    secret: String,
}

/// What is wrong with a job's description, and what to do.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum JobError {
    /// The file cannot be read.
    #[error("cannot read the job file {path}: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// Not TOML, an unknown or missing key, or a value of the wrong type.
    #[error("the job file is not valid: {0}")]
    Syntax(String),
    /// Two workers with the same rank.
    #[error("rank {0} stands twice in the job file: give every worker a rank of its own")]
    DuplicateRank(u16),
    /// Ranks are not 0, 1, 2, ...
    #[error(
        "the job file has {workers} workers but none of rank {missing}: ranks are 0 to {last}",
        last = workers - 1
    )]
    MissingRank {
        /// The smallest rank without a worker.
        missing: u16,
        /// How many workers there are.
        workers: usize,
    },
    /// More workers than the integers of a packet have room for, or none.
    #[error(transparent)]
    Workers(#[from] TooManyWorkers),
    /// Two members with the same address and port.
    #[error(
        "{0} stands twice in the job file: give every worker and the aggregator an address or a port of its own"
    )]
    DuplicateAddress(SocketAddr),
    /// Not an IP address and a port.
    #[error("{what} = \"{value}\" is not an IP address with a port, such as 10.0.0.1:9700 or [fd00::1]:9700")]
    Address {
        /// The key.
        what: String,
        /// Its value.
        value: String,
    },
    /// An IPv6 address that is not the same everywhere.
    #[error(
        "{what} = \"{value}\" is an IPv6 address of one link only: use one without a zone that is the same on all machines, such as a unique local one ([fd00::1]:9700)"
    )]
    LinkLocal {
        /// The key.
        what: String,
        /// Its value.
        value: String,
    },
    /// Both versions of IP.
    #[error(
        "the aggregator at {aggregator} and the worker at {worker} have addresses of different versions of IP: give all members of the job IPv4 addresses, or all IPv6"
    )]
    Families {
        /// Where the aggregator is.
        aggregator: SocketAddr,
        /// Where the first worker of the other version is.
        worker: SocketAddr,
    },
    /// The lanes are not a multiple of 16 in range.
    #[error(
        "lanes = {lanes} is not a multiple of {LANE_BLOCK} from {LANE_BLOCK} to {most}: over {family} {default} fits MTU 1500, {most} fits MTU 3498",
        most = family.max_lanes(),
        default = default_lanes(*family)
    )]
    Lanes {
        /// The lanes that were asked for.
        lanes: u64,
        /// The version of IP of the job's addresses.
        family: Family,
    },
    /// Neither or both of `slots` and `gradient_elements`.
    #[error(
        "the job file must have either gradient_elements (values in flight in one step) or slots (fragments), not {0}"
    )]
    SlotsOrElements(&'static str),
    /// Too few or too many slots.
    #[error("{0} slots are out of range: 1 to {MAX_SLOTS}")]
    Slots(u64),
    /// A rate at which packets hardly pass.
    #[error(
        "rate = \"{rate}\" of rank {rank} is less than {LEAST_PACKET_RATE} packets of {bytes} bytes a second: use at least {least}"
    )]
    Rate {
        /// The worker.
        rank: usize,
        /// Its rate.
        rate: Rate,
        /// What a packet takes on the wire.
        bytes: usize,
        /// The lowest rate that is taken.
        least: Rate,
    },
    /// Too short a secret.
    #[error(
        "the secret has {0} characters: use at least {LEAST_SECRET}, for instance from `openssl rand -hex 16`"
    )]
    Secret(usize),
    /// Not a positive, finite time.
    #[error("timeout_seconds must be more than 0 and at most 86400")]
    Timeout,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    job: u32,
    view: Option<u16>,
    secret: String,
    lanes: Option<u64>,
    gradient_elements: Option<u64>,
    slots: Option<u64>,
    checksum: Option<bool>,
    timeout_seconds: Option<f64>,
    aggregator: String,
    #[serde(default)]
    worker: Vec<WorkerEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkerEntry {
    rank: u16,
    address: String,
    rate: Option<Rate>,
}

/// What the file says of a worker, but for its rank.
#[derive(Clone, Copy)]
struct Member {
    address: SocketAddr,
    rate: Option<Rate>,
}

impl Job {
    /// Reads a job from a TOML file.
    ///
    /// # Errors
    /// [`JobError`], each with what to do.
    pub fn load(path: &Path) -> Result<Self, JobError> {
        let text = std::fs::read_to_string(path).map_err(|error| JobError::Unreadable {
            path: path.display().to_string(),
            reason: error.to_string(),
        })?;
        Self::parse(&text)
    }

    /// Reads a job from the text of a TOML file.
    ///
    /// # Errors
    /// [`JobError`], each with what to do.
    pub fn parse(text: &str) -> Result<Self, JobError> {
        let file: File = toml::from_str(text).map_err(|error| JobError::Syntax(error.to_string()))?;
        if file.secret.chars().count() < LEAST_SECRET {
            return Err(JobError::Secret(file.secret.chars().count()));
        }
        let format = Format::for_workers(file.worker.len())?;
        let aggregator = parse_address("aggregator", &file.aggregator)?;
        let members = parse_workers(&file.worker)?;
        let workers: Vec<SocketAddr> = members.iter().map(|member| member.address).collect();
        check_distinct(aggregator, &workers)?;
        check_family(aggregator, &workers)?;
        let lanes = parse_lanes(file.lanes, Family::of(&aggregator))?;
        let rates: Vec<Option<Rate>> = members.iter().map(|member| member.rate).collect();
        check_rates(&rates, Family::of(&aggregator).wire_len(lanes))?;
        Ok(Self {
            id: file.job,
            view: file.view.unwrap_or(1),
            lanes,
            slots: parse_slots(file.slots, file.gradient_elements, lanes)?,
            checksum: file.checksum.unwrap_or(true),
            timeout: parse_timeout(file.timeout_seconds)?,
            aggregator,
            workers,
            rates,
            format,
            secret: file.secret,
        })
    }

    /// The version of IP of all its members.
    #[must_use]
    pub const fn family(&self) -> Family {
        Family::of(&self.aggregator)
    }

    /// The smallest MTU, in bytes, of a path that carries the job's packets.
    #[must_use]
    pub const fn mtu(&self) -> usize {
        self.family().mtu_for_lanes(self.lanes)
    }

    /// The length in bytes of the job's full-length packets.
    #[must_use]
    pub fn packet_len(&self) -> usize {
        full_len(self.lanes)
    }

    /// How many of the job's packets a rank may send in a second, if the file says so.
    #[must_use]
    pub fn packet_rate(&self, rank: u16) -> Option<f64> {
        let bytes = self.family().wire_len(self.lanes);
        self.rates[usize::from(rank)].map(|rate| rate.packets_per_second(bytes))
    }

    /// The secret of a rank's flow.
    #[must_use]
    pub fn cookie(&self, rank: u16) -> Cookie {
        Cookie::derive(&self.secret, self.id, self.view, rank)
    }

    /// The slot of a sequence (WIRE section 4).
    #[must_use]
    pub fn slot(&self, sequence: u64) -> u32 {
        (sequence % u64::from(self.slots)) as u32
    }

    /// The number of workers.
    #[must_use]
    pub fn worker_count(&self) -> u16 {
        self.workers.len() as u16
    }
}

fn parse_address(what: &str, value: &str) -> Result<SocketAddr, JobError> {
    let (what, value) = (what.to_owned(), value.to_owned());
    match value.parse::<SocketAddr>() {
        Ok(SocketAddr::V6(address)) if address.scope_id() != 0 || address.ip().is_unicast_link_local() => {
            Err(JobError::LinkLocal { what, value })
        }
        Ok(address) if address.port() != 0 && is_usable(address.ip()) => Ok(address),
        _ => Err(JobError::Address { what, value }),
    }
}

/// An IPv6 address that stands for an IPv4 one would not be what packets on the wire have.
fn is_usable(address: IpAddr) -> bool {
    !address.is_unspecified() && address == address.to_canonical()
}

/// The workers in the order of their ranks, which must be 0, 1, 2, ...
fn parse_workers(entries: &[WorkerEntry]) -> Result<Vec<Member>, JobError> {
    let mut by_rank = BTreeMap::new();
    for entry in entries {
        let address = parse_address(&format!("address of rank {}", entry.rank), &entry.address)?;
        if by_rank.insert(entry.rank, Member { address, rate: entry.rate }).is_some() {
            return Err(JobError::DuplicateRank(entry.rank));
        }
    }
    match (0..).zip(by_rank.keys()).find(|(expected, rank)| expected != *rank) {
        Some((missing, _)) => Err(JobError::MissingRank { missing, workers: entries.len() }),
        None => Ok(by_rank.into_values().collect()),
    }
}

fn check_distinct(aggregator: SocketAddr, workers: &[SocketAddr]) -> Result<(), JobError> {
    let mut seen = std::collections::HashSet::from([aggregator]);
    match workers.iter().find(|worker| !seen.insert(**worker)) {
        Some(twice) => Err(JobError::DuplicateAddress(*twice)),
        None => Ok(()),
    }
}

fn check_family(aggregator: SocketAddr, workers: &[SocketAddr]) -> Result<(), JobError> {
    match workers.iter().find(|worker| Family::of(worker) != Family::of(&aggregator)) {
        Some(worker) => Err(JobError::Families { aggregator, worker: *worker }),
        None => Ok(()),
    }
}

fn check_rates(rates: &[Option<Rate>], bytes: usize) -> Result<(), JobError> {
    let least = Rate::mbit((LEAST_PACKET_RATE * 8.0 * bytes as f64 / 1e6).ceil() as u64);
    for (rank, rate) in rates.iter().enumerate() {
        if let Some(rate) = *rate
            && rate.packets_per_second(bytes) < LEAST_PACKET_RATE
        {
            return Err(JobError::Rate { rank, rate, bytes, least });
        }
    }
    Ok(())
}

fn default_lanes(family: Family) -> usize {
    family.lanes_for_mtu(DEFAULT_MTU).unwrap_or(LANE_BLOCK)
}

fn parse_lanes(lanes: Option<u64>, family: Family) -> Result<usize, JobError> {
    let Some(lanes) = lanes else { return Ok(default_lanes(family)) };
    match usize::try_from(lanes) {
        Ok(count) if (LANE_BLOCK..=family.max_lanes()).contains(&count) && count % LANE_BLOCK == 0 => {
            Ok(count)
        }
        _ => Err(JobError::Lanes { lanes, family }),
    }
}

fn parse_slots(slots: Option<u64>, elements: Option<u64>, lanes: usize) -> Result<u32, JobError> {
    let slots = match (slots, elements) {
        (Some(slots), None) => slots,
        (None, Some(elements)) => (elements.div_ceil(lanes as u64)).saturating_add(SLOTS_FOR_TAILS),
        (None, None) => return Err(JobError::SlotsOrElements("neither")),
        (Some(_), Some(_)) => return Err(JobError::SlotsOrElements("both")),
    };
    match u32::try_from(slots) {
        Ok(count @ 1..=MAX_SLOTS) => Ok(count),
        _ => Err(JobError::Slots(slots)),
    }
}

fn parse_timeout(seconds: Option<f64>) -> Result<Duration, JobError> {
    let seconds = seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS);
    if seconds > 0.0 && seconds <= 86_400.0 {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(JobError::Timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        job = 7
        secret = "0123456789abcdef"
        gradient_elements = 1_000_000
        aggregator = "10.0.0.9:9700"
        [[worker]]
        rank = 1
        address = "10.0.0.2:9701"
        [[worker]]
        rank = 0
        address = "10.0.0.1:9701"
    "#;

    fn error_of(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "the test replaces something that is there");
        Job::parse(&GOOD.replacen(from, to, 1)).expect_err("must be refused").to_string()
    }

    #[test]
    fn a_good_file_is_read_with_its_defaults() {
        let job = Job::parse(GOOD).expect("good");
        assert_eq!((job.id, job.view, job.lanes), (7, 1, 352));
        assert_eq!(job.slots, 1_000_000_u32.div_ceil(352) + 64);
        assert_eq!(job.timeout, Duration::from_secs(60));
        assert!(job.checksum, "who does not say gets the safe one");
        assert_eq!(job.workers[0].to_string(), "10.0.0.1:9701");
        assert_ne!(job.cookie(0), job.cookie(1));
    }

    #[test]
    fn a_job_over_ipv6_has_packets_that_fit_its_longer_header() {
        let text = GOOD.replace("10.0.0.9:", "[fd00::9]:").replace("10.0.0.2:", "[fd00::2]:");
        let text = text.replace("10.0.0.1:", "[fd00:0:0:0::1]:");
        let job = Job::parse(&text).expect("good");
        assert_eq!((job.family(), job.lanes, job.mtu()), (Family::V6, 336, 1456));
        assert_eq!(job.workers[0].to_string(), "[fd00::1]:9701");
        let with =
            |lanes: &str| Job::parse(&text.replacen("job = 7", &format!("job = 7\nlanes = {lanes}"), 1));
        assert_eq!(with("832").expect("fits").mtu(), 3440);
        let message = with("848").expect_err("does not fit MTU 3498").to_string();
        assert!(message.contains("over IPv6 336 fits MTU 1500, 832 fits MTU 3498"), "{message}");
    }

    #[test]
    fn a_worker_may_have_a_rate_of_its_own() {
        let text = GOOD.replacen("rank = 1", "rank = 1\nrate = \"250mbit\"", 1);
        let job = Job::parse(&text).expect("good");
        assert_eq!(job.rates, [None, Some(Rate::mbit(250))]);
        assert_eq!(job.packet_rate(0), None);
        assert!((job.packet_rate(1).expect("has one") - 250e6 / (8.0 * 1538.0)).abs() < 1e-6);
    }

    #[test]
    fn every_mistake_gets_its_own_sentence() {
        assert!(error_of("rank = 1", "rank = 0").contains("rank 0 stands twice"));
        assert!(error_of("rank = 1", "rank = 5").contains("none of rank 1"));
        assert!(error_of("job = 7", "job = 7\ncolour = 3").contains("colour"));
        assert!(error_of("job = 7", "").contains("job"));
        assert!(error_of("job = 7", "job = 7\nlanes = 350").contains("multiple of 16"));
        assert!(error_of("job = 7", "job = 7\nlanes = 1024").contains("848"));
        assert!(error_of("job = 7", "job = 7\nslots = 9").contains("not both"));
        assert!(error_of("gradient_elements = 1_000_000", "").contains("not neither"));
        assert!(error_of("gradient_elements = 1_000_000", "slots = 0").contains("out of range"));
        assert!(error_of("0123456789abcdef", "short").contains("at least 16"));
        for not_an_address in
            ["10.0.0.9", "10.0.0.9:0", "0.0.0.0:9700", "[::]:9700", "::1", "[::ffff:10.0.0.9]:9700"]
        {
            assert!(error_of("10.0.0.9:9700", not_an_address).contains("is not an IP address with a port"));
        }
        let mixed = error_of("10.0.0.9:9700", "[fd00::9]:9700");
        assert!(mixed.contains("[fd00::9]:9700 and the worker at 10.0.0.1:9701"), "{mixed}");
        for of_one_link in ["[fe80::9]:9700", "[fe80::9%2]:9700", "[fd00::9%2]:9700"] {
            assert!(error_of("10.0.0.9:9700", of_one_link).contains("of one link only"));
        }
        let slow = error_of("rank = 1", "rank = 1\nrate = \"10mbit\"");
        assert!(slow.contains("\"10mbit\" of rank 1") && slow.contains("at least 13mbit"), "{slow}");
        assert!(error_of("rank = 1", "rank = 1\nrate = \"fast\"").contains("such as 1gbit"));
        assert!(error_of("10.0.0.2:9701", "10.0.0.9:9700").contains("10.0.0.9:9700 stands twice"));
        assert!(error_of("job = 7", "job = 7\ntimeout_seconds = 0").contains("timeout_seconds"));
        assert!(error_of("job = 7", "job = 7\nchecksum = 0").contains("checksum"));
        assert!(error_of("job = 7", "job = 7\ntimeout_seconds = nan").contains("timeout_seconds"));
    }

    #[test]
    fn too_many_workers_for_the_mantissa_are_refused() {
        let mut text = GOOD.split("[[worker]]").next().expect("head").to_owned();
        for rank in 0..257 {
            text += &format!("[[worker]]\nrank = {rank}\naddress = \"10.0.1.1:{}\"\n", 10_000 + rank);
        }
        let message = Job::parse(&text).expect_err("too many").to_string();
        assert!(message.contains("257") && message.contains("256"), "{message}");
    }
}
