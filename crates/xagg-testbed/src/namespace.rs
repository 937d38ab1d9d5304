//! A node: a namespace with one interface.

use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::shell::{ShellError, output, run};

/// A namespace, which is removed when this is dropped.
#[derive(Debug)]
pub struct Node {
    name: String,
    address: Ipv4Addr,
    port: String,
}

impl Node {
    /// The interface of every node.
    pub const INTERFACE: &'static str = "eth0";

    /// Makes the namespace. `port` is the switch's end of its link.
    pub(crate) fn create(
        name: String,
        address: Ipv4Addr,
        port: String,
        ipv6: bool,
    ) -> Result<Self, ShellError> {
        run("ip", &["netns", "add", &name])?;
        let node = Self { name, address, port };
        if ipv6 {
            // The address that is given is the only one.
            node.set_sysctl("net/ipv6/conf/default/addr_gen_mode", "1")?;
        } else {
            // Keeps neighbour discovery and the like off the wire, where it would blur counters.
            for scope in ["all", "default"] {
                node.set_sysctl(&format!("net/ipv6/conf/{scope}/disable_ipv6"), "1")?;
            }
        }
        run("ip", &["-n", node.name(), "link", "set", "lo", "up"])?;
        Ok(node)
    }

    /// The name of the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address.
    #[must_use]
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Its IPv6 address, if the testbed has them.
    #[must_use]
    pub const fn ipv6_address(&self) -> Ipv6Addr {
        crate::ipv6_of(self.address)
    }

    /// The switch's end of its link.
    #[must_use]
    pub fn port(&self) -> &str {
        &self.port
    }

    /// A command that runs in the namespace, which a child enters before it executes.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let namespace = self.open();
        let mut command = Command::new(program);
        let enter = move || match &namespace {
            Ok(namespace) => Ok(setns(namespace, CloneFlags::CLONE_NEWNET)?),
            Err(error) => Err(std::io::Error::from(error.kind())),
        };
        // SAFETY: between fork and exec the closure only makes a system call on a descriptor that was opened before.
        unsafe { command.pre_exec(enter) };
        command
    }

    /// Runs `body` on a thread of its own in the namespace. Sockets that it makes stay there; threads that it starts do too.
    ///
    /// # Panics
    /// If the namespace cannot be entered, or `body` panics.
    pub fn enter<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let outcome = std::thread::scope(|scope| {
            let inside = || {
                let namespace = self.open().expect("the namespace exists as long as the node");
                setns(&namespace, CloneFlags::CLONE_NEWNET).expect("root may enter a namespace");
                body()
            };
            scope.spawn(inside).join()
        });
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// The ids of the processes in the namespace.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn processes(&self) -> Result<Vec<u32>, ShellError> {
        processes(&self.name)
    }

    fn open(&self) -> std::io::Result<File> {
        File::open(format!("/var/run/netns/{}", self.name))
    }

    /// Sets a value under /proc/sys for the namespace, if this kernel has it.
    pub(crate) fn set_sysctl(&self, name: &str, value: &str) -> Result<(), ShellError> {
        let path = format!("/proc/sys/{name}");
        match self.enter(|| std::fs::write(&path, value)) {
            Err(reason) if reason.kind() != std::io::ErrorKind::NotFound => {
                Err(ShellError::System { what: format!("writing {path}"), reason })
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Err(error) = run("ip", &["netns", "delete", &self.name]) {
            eprintln!("cannot remove the namespace {}: {error}", self.name);
        }
    }
}

/// The names of all namespaces of ours.
pub(crate) fn existing() -> Vec<String> {
    let entries = std::fs::read_dir("/var/run/netns").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(crate::PREFIX)).collect()
}

/// Kills the processes in a namespace: they would keep it, and its interfaces, although its name is gone.
pub(crate) fn end_processes(name: &str) {
    for pid in processes(name).unwrap_or_default() {
        let _gone_already = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
}

fn processes(name: &str) -> Result<Vec<u32>, ShellError> {
    let pids = output("ip", &["netns", "pids", name])?;
    Ok(pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}
