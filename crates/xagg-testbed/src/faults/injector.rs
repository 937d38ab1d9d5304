//! The fault program at one direction of a port.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHookBuilder};
use nix::net::if_::if_nametoindex;

use super::side_path::SidePath;
use super::{Direction, Done, Faults};
use crate::namespace::Node;
use crate::shell::ShellError;

#[allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks, reason = "generated")]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/faults.skel.rs"));
}
use skeleton::FaultsSkelBuilder;

const ONLY_ENTRY: [u8; 4] = 0_u32.to_ne_bytes();
/// `BPF_F_INGRESS`: a frame that is redirected to a device arrives there instead of being sent.
const ARRIVES: u32 = 1;
/// Marks frames that the program of a direction has seen.
const SEEN: u32 = 0x5841_4700;

/// The program, which stays as long as the port does.
#[derive(Debug)]
pub(crate) struct Injector {
    settings: MapHandle,
    counts: MapHandle,
    /// What gives frames back from the side path.
    back: OwnedFd,
    /// Made when it is needed first.
    side_path: Option<SidePath>,
    name: String,
}

impl Injector {
    /// Attaches the program, which does nothing yet.
    pub(crate) fn attach(switch: &Node, port: &str, direction: Direction) -> Result<Self, ShellError> {
        let (label, flags, point) = match direction {
            Direction::ToNode => ("to", 0, TC_EGRESS),
            Direction::FromNode => ("from", ARRIVES, TC_INGRESS),
        };
        let inside = || -> io::Result<Self> {
            let index = if_nametoindex(port)?;
            let mut storage = MaybeUninit::uninit();
            let mut open = FaultsSkelBuilder::default().open(&mut storage).map_err(io::Error::other)?;
            if let Some(constants) = &mut open.maps.rodata_data {
                constants.config_port = index;
                constants.config_redirect_flags = flags;
                constants.config_seen = SEEN | flags;
            }
            let loaded = open.load().map_err(io::Error::other)?;
            hook(&loaded.progs.xagg_faults, index, point)?;
            Ok(Self {
                settings: MapHandle::try_from(&loaded.maps.fault_settings).map_err(io::Error::other)?,
                counts: MapHandle::try_from(&loaded.maps.fault_counts).map_err(io::Error::other)?,
                back: loaded.progs.xagg_faults_back.as_fd().try_clone_to_owned()?,
                side_path: None,
                name: format!("{label}-{port}"),
            })
        };
        switch.enter(inside).map_err(|reason| failed(port, reason))
    }

    /// What is to happen from now on.
    pub(crate) fn set(&mut self, switch: &Node, faults: &Faults) -> Result<(), ShellError> {
        if let Some(reorder) = faults.reorder {
            if self.side_path.is_none() {
                self.side_path = Some(self.open_side_path(switch)?);
            }
            self.side_path.iter().for_each(|path| path.set_delay(reorder.delay));
        }
        let side_path = self.side_path.as_ref().map_or(0, SidePath::index);
        let value: Vec<u8> = faults.to_words(side_path).into_iter().flat_map(u64::to_ne_bytes).collect();
        let written = self.settings.update(&ONLY_ENTRY, &value, MapFlags::ANY);
        written.map_err(|reason| failed(&self.name, io::Error::other(reason)))
    }

    fn open_side_path(&self, switch: &Node) -> Result<SidePath, ShellError> {
        let path = SidePath::open(switch, &self.name).map_err(|reason| failed(&self.name, reason))?;
        let attached = switch.enter(|| hook(&self.back, path.index(), TC_INGRESS));
        attached.map_err(|reason| failed(&self.name, reason))?;
        Ok(path)
    }

    /// What has happened so far.
    pub(crate) fn done(&self) -> Result<Done, ShellError> {
        let value = self.counts.lookup(&ONLY_ENTRY, MapFlags::ANY);
        let value = value.map_err(|reason| failed(&self.name, io::Error::other(reason)))?.unwrap_or_default();
        let mut words = [0; 7];
        for (word, bytes) in words.iter_mut().zip(value.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Ok(Done::from_words(words))
    }
}

/// Before the filter that an aggregator's rate has at the same place.
fn hook(program: &impl AsFd, index: u32, point: TcAttachPoint) -> io::Result<()> {
    let mut hook = TcHookBuilder::new(program.as_fd());
    hook.ifindex(index.cast_signed()).handle(1).priority(1);
    hook.hook(point).attach().map(drop).map_err(io::Error::other)
}

fn failed(link: &str, reason: io::Error) -> ShellError {
    ShellError::System { what: format!("the fault program of {link}"), reason }
}
