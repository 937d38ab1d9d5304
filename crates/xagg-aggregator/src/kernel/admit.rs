//! Admission of jobs: their maps, their workers' flows, their entry in the table of jobs.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::AsRawLibbpf;
use libbpf_rs::libbpf_sys;
use libbpf_rs::skel::Skel;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use xagg_proto::{Job, aggregator};

use super::skeleton::XaggSkel;
use super::types;
use super::{FLOWS_PER_JOB, KernelError, load, plain};
use crate::interface::Interface;

/// The maps that belong to one job. The program holds them by its maps of maps.
pub(super) struct JobMaps {
    #[cfg_attr(not(test), allow(dead_code, reason = "tests look into the slots"))]
    pub slots: MapHandle,
    #[cfg_attr(not(test), allow(dead_code, reason = "tests look into the sums"))]
    pub sums: MapHandle,
}

/// Admits the jobs, which get the indices 1, 2, ... Index 0 of the copies is for the self-test.
pub(super) fn admit_all(
    skeleton: &XaggSkel<'_>,
    interface: &Interface,
    jobs: &[Job],
) -> Result<Vec<JobMaps>, KernelError> {
    let grant = aggregator::grant(interface.ring, jobs.iter().map(|job| job.workers.len()).sum());
    let interface = interface.index;
    let probe_copies = copies_map(skeleton, interface, 1)?;
    put_inner(&skeleton.maps.copies, 0, &probe_copies)?;
    (1..).zip(jobs).map(|(index, job)| admit(skeleton, interface, index, job, grant)).collect()
}

/// The entry in the table of jobs comes last: from then on packets are let in.
fn admit(
    skeleton: &XaggSkel<'_>,
    interface: u32,
    index: u32,
    job: &Job,
    grant: u32,
) -> Result<JobMaps, KernelError> {
    let maps =
        JobMaps { slots: slots_map(skeleton, job.slots)?, sums: load::lanes_map(job.lanes, 2 * job.slots)? };
    put_inner(&skeleton.maps.slots, index, &maps.slots)?;
    put_inner(&skeleton.maps.sums, index, &maps.sums)?;
    put_inner(&skeleton.maps.copies, index, &copies_map(skeleton, interface, job.workers.len())?)?;
    for (rank, address) in (0..).zip(&job.workers) {
        let flow = types::flow {
            address: plain::address(address.ip()),
            port: address.port().to_be(),
            cookie: job.cookie(rank).to_wire(),
            ..Default::default()
        };
        let key = index * FLOWS_PER_JOB + u32::from(rank);
        put(&skeleton.maps.flows, &key.to_ne_bytes(), plain::bytes(&flow))?;
    }
    let key = types::job_key { job: job.id, view: job.view, zero: 0 };
    let entry = types::job {
        index,
        slots: job.slots,
        workers: job.workers.len() as u32,
        guard_bits: job.format.guard_bits(),
        bias: job.format.bias(),
        grant,
        checksum: job.checksum.into(),
    };
    put(&skeleton.maps.jobs, plain::bytes(&key), plain::bytes(&entry))?;
    Ok(maps)
}

/// A map of slots. Their lock needs the kernel to know the type of the value.
fn slots_map(skeleton: &XaggSkel<'_>, slots: u32) -> Result<MapHandle, KernelError> {
    let object = skeleton.object().as_libbpf_object();
    // SAFETY: the object is loaded and lives as long as the skeleton; the name is a C string.
    let (btf_fd, slot_type) = unsafe {
        let btf = libbpf_sys::bpf_object__btf(object.as_ptr());
        let slot = libbpf_sys::btf__find_by_name_kind(btf, c"slot".as_ptr(), libbpf_sys::BTF_KIND_STRUCT);
        let int = libbpf_sys::btf__find_by_name_kind(btf, c"unsigned int".as_ptr(), libbpf_sys::BTF_KIND_INT);
        (libbpf_sys::bpf_object__btf_fd(object.as_ptr()), (int, slot))
    };
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        btf_fd: btf_fd.cast_unsigned(),
        btf_key_type_id: slot_type.0.cast_unsigned(),
        btf_value_type_id: slot_type.1.cast_unsigned(),
        map_flags: libbpf_sys::BPF_F_INNER_MAP,
        ..Default::default()
    };
    let size = size_of::<types::slot>() as u32;
    MapHandle::create(MapType::Array, Some("xagg_slots"), 4, size, slots, &options)
        .map_err(|error| KernelError::of_map(error, u64::from(size) * u64::from(slots)))
}

/// As many entries of the interface as there are copies to make, each with the egress program.
fn copies_map(skeleton: &XaggSkel<'_>, interface: u32, copies: usize) -> Result<MapHandle, KernelError> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let size = size_of::<libbpf_sys::bpf_devmap_val>() as u32;
    let map = MapHandle::create(MapType::DevmapHash, Some("xagg_copies"), 4, size, FLOWS_PER_JOB, &options)
        .map_err(KernelError::of_load)?;
    let mut entry = libbpf_sys::bpf_devmap_val { ifindex: interface, ..Default::default() };
    entry.bpf_prog.fd = skeleton.progs.xagg_egress.as_fd().as_raw_fd();
    for copy in 0..copies as u32 {
        put(&map, &copy.to_ne_bytes(), plain::bytes(&entry))?;
    }
    Ok(map)
}

fn put_inner(outer: &impl MapCore, index: u32, inner: &MapHandle) -> Result<(), KernelError> {
    put(outer, &index.to_ne_bytes(), &inner.as_fd().as_raw_fd().to_ne_bytes())
}

fn put(map: &impl MapCore, key: &[u8], value: &[u8]) -> Result<(), KernelError> {
    map.update(key, value, MapFlags::ANY).map_err(KernelError::Map)
}
