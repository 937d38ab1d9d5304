//! What a test could leave behind on a machine, and whether it did.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::shell;

/// How long what is going away may take: processes to be reaped, namespaces to be torn down.
const GRACE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(200);

/// Namespaces, processes, pinned maps and attached programs that are there now.
pub struct Leftovers(BTreeSet<String>);

impl Leftovers {
    /// Looks around.
    pub fn find() -> Self {
        let named = |folder: &str, what: &str| {
            let names = names_in(folder).into_iter().filter(|name| name.starts_with("xagg"));
            names.map(|name| format!("{what} {folder}/{name}")).collect::<Vec<_>>()
        };
        let mut found = BTreeSet::from_iter(named("/run/netns", "network namespace"));
        found.extend(named("/sys/fs/bpf", "pinned BPF object"));
        found.extend(processes(&shell::target()));
        found.extend(attached_programs());
        Self(found)
    }

    /// Looks around again.
    ///
    /// # Errors
    /// Lists what was not there at the first look.
    pub fn expect_nothing_new(&self) -> Result<()> {
        let deadline = Instant::now() + GRACE;
        loop {
            let new: Vec<String> = Self::find().0.difference(&self.0).cloned().collect();
            if new.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!("left behind:\n  {}", new.join("\n  "));
            }
            std::thread::sleep(PAUSE);
        }
    }
}

fn names_in(folder: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Processes that run something from the folder of built things: by their executable, or by the name that they were started
/// with, as an interpreter in a virtual environment is a link to the system's. A compiler that only writes there is not one.
fn processes(built: &Path) -> Vec<String> {
    let ours = |pid: &str| {
        let executable = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let name = Path::new(command.split('\0').next().unwrap_or_default());
        let is_ours = executable.starts_with(built) || name.starts_with(built);
        is_ours.then(|| format!("process {pid}: {}", command.replace('\0', " ").trim_end()))
    };
    let pids = names_in("/proc").into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    pids.filter_map(|pid| ours(&pid)).collect()
}

fn attached_programs() -> Vec<String> {
    if !shell::exists("ip") {
        return Vec::new();
    }
    let links =
        shell::read(Command::new("ip").args(["-json", "-details", "link", "show"])).unwrap_or_default();
    interfaces_with_xdp(&links)
}

fn interfaces_with_xdp(links: &str) -> Vec<String> {
    let links: Vec<Value> = serde_json::from_str(links).unwrap_or_default();
    let with_xdp = links.iter().filter(|link| link.get("xdp").is_some());
    with_xdp
        .map(|link| format!("XDP program on interface {}", link["ifname"].as_str().unwrap_or("?")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    #[test]
    fn a_process_from_the_folder_is_found_until_it_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let name = folder.path().join("python");
        let mut child = Command::new("sleep").arg0(&name).arg("60").spawn().expect("starts");
        // The system shows the arguments a moment after the start.
        let deadline = Instant::now() + GRACE;
        let mut found = processes(folder.path());
        while found.is_empty() && Instant::now() < deadline {
            found = processes(folder.path());
        }
        child.kill().and_then(|()| child.wait()).expect("ends");
        assert!(found.len() == 1 && found[0].contains("python 60"), "{found:?}");
        assert_eq!(processes(folder.path()), Vec::<String>::new());
    }

    #[test]
    fn an_attached_program_is_seen_in_the_list_of_links() {
        let links = r#"[{"ifname":"lo"},{"ifname":"eth0","xdp":{"mode":1,"prog":{"id":7}}}]"#;
        assert_eq!(interfaces_with_xdp(links), ["XDP program on interface eth0"]);
    }

    #[test]
    fn only_what_is_new_counts() {
        let everything = Leftovers::find();
        everything.expect_nothing_new().expect("nothing is new");
    }
}
