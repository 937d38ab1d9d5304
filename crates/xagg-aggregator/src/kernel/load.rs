//! From the object that the build script compiled to a program in the kernel with the jobs' maps.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libbpf_rs::libbpf_sys;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapHandle, MapType};
use xagg_proto::Job;
use xagg_wire::Flags;

use super::skeleton::{OpenXaggSkel, XaggSkel, XaggSkelBuilder};
use super::{KernelConfig, KernelError, Loaded, Mode, admit, plain};

/// Loads the program with room for the jobs, and admits them. All have the same lanes.
pub(super) fn load(config: &KernelConfig, jobs: &[Job]) -> Result<Loaded, KernelError> {
    listen();
    let mut storage = MaybeUninit::uninit();
    let mut open = XaggSkelBuilder::default().open(&mut storage).map_err(KernelError::of_load)?;
    configure(&mut open, config, &jobs[0]);
    let template = lanes_map(jobs[0].lanes, 1)?;
    open.maps.sums.set_inner_map_fd(template.as_fd()).map_err(KernelError::of_load)?;
    let skeleton = open.load().map_err(refused)?;
    let job_maps = admit::admit_all(&skeleton, &config.interface, jobs)?;
    finish(&skeleton, job_maps)
}

/// The constants that the verifier sees.
fn configure(open: &mut OpenXaggSkel<'_>, config: &KernelConfig, job: &Job) {
    if let Some(constants) = &mut open.maps.rodata_data {
        constants.config_lanes = job.lanes as u32;
        constants.config_address = plain::address(config.address.ip());
        constants.config_is_ipv6 = config.address.is_ipv6().into();
        constants.config_port = config.address.port().to_be();
        constants.config_incarnation = config.incarnation;
        // In generic mode a batch sent with segmentation offload arrives as one frame, which is too long for a packet.
        constants.config_welcome_flags = Flags::NO_GSO.when(config.mode == Mode::Generic).to_wire();
    }
}

/// A map of `banks` banks of lanes.
pub(super) fn lanes_map(lanes: usize, banks: u32) -> Result<MapHandle, KernelError> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        map_flags: libbpf_sys::BPF_F_INNER_MAP,
        ..Default::default()
    };
    let size = 4 * lanes as u32;
    MapHandle::create(MapType::Array, Some("xagg_sums"), 4, size, banks, &options)
        .map_err(|error| KernelError::of_map(error, u64::from(size) * u64::from(banks)))
}

/// Keeps what outlives the skeleton: the kernel keeps a program and its maps as long as a descriptor refers to them.
fn finish(skeleton: &XaggSkel<'_>, job_maps: Vec<admit::JobMaps>) -> Result<Loaded, KernelError> {
    let own = |fd: BorrowedFd<'_>| -> Result<OwnedFd, KernelError> {
        fd.try_clone_to_owned().map_err(|error| KernelError::Load(error.into()))
    };
    #[cfg(not(test))]
    drop(job_maps);
    Ok(Loaded {
        ingress: own(skeleton.progs.xagg.as_fd())?,
        probe: own(skeleton.progs.xagg_probe.as_fd())?,
        #[cfg(test)]
        egress: own(skeleton.progs.xagg_egress_run.as_fd())?,
        #[cfg(test)]
        switch: [own(skeleton.progs.xagg_switch_push.as_fd())?, own(skeleton.progs.xagg_switch_pop.as_fd())?],
        flows: MapHandle::try_from(&skeleton.maps.flows).map_err(KernelError::Map)?,
        counters: MapHandle::try_from(&skeleton.maps.counters).map_err(KernelError::Map)?,
        #[cfg(test)]
        clock: MapHandle::try_from(&skeleton.maps.data_clock).map_err(KernelError::Map)?,
        #[cfg(test)]
        jobs: job_maps,
    })
}

/// The verifier's objection is in its last lines; the whole log can have thousands.
const OBJECTION_LINES: usize = 12;

thread_local! {
    /// What libbpf has said in this load: it speaks on the thread that calls it.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// libbpf prints to stderr by default; what it says is kept for the error instead, if there is one.
fn listen() {
    SAID.take();
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, |_, message| {
        tracing::debug!(target: "libbpf", "{}", message.trim_end());
        SAID.with_borrow_mut(|said| said.push_str(&message));
    })));
}

/// The verifier refuses with the same error number as missing permission gives; but only the verifier leaves a log.
fn refused(reason: libbpf_rs::Error) -> KernelError {
    match objection(&SAID.take()) {
        Some(log) => KernelError::Refused { reason, log: last_lines(log, OBJECTION_LINES) },
        None => KernelError::of_load(reason),
    }
}

/// The part of what libbpf said that the verifier wrote. After it libbpf says more, of each program.
fn objection(said: &str) -> Option<&str> {
    let log = said.split("-- BEGIN PROG LOAD LOG --").nth(1)?.split("-- END PROG LOAD LOG --").next()?;
    Some(log.trim()).filter(|log| !log.is_empty())
}

fn last_lines(text: &str, count: usize) -> String {
    let skipped = text.lines().count().saturating_sub(count);
    text.lines().skip(skipped).collect::<Vec<_>>().join("\n")
}
