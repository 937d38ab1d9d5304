//! Which files belong to the tree, and what is in them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

/// Built by tools, so never in the tree, whatever they contain.
const GENERATED: &[&str] = &[".o", ".so", ".whl", ".png", ".pyc", ".skel.rs"];

/// Paths, relative to the root, of tracked files and of those that git would add.
///
/// # Errors
/// When git cannot list them.
pub fn list(root: &Path) -> Result<Vec<String>> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"];
    let output = shell::read(Command::new("git").args(arguments).current_dir(root))?;
    let paths = output.split('\0').filter(|path| !path.is_empty());
    // A file that was deleted, but not yet from git's index, is not part of the tree.
    Ok(paths.filter(|path| root.join(path).is_file()).map(str::to_owned).collect())
}

/// The content of a text file; `None` for anything else, such as the output of a compiler.
///
/// # Errors
/// When the file cannot be read.
pub fn read_text(root: &Path, path: &str) -> Result<Option<String>> {
    if GENERATED.iter().any(|ending| path.ends_with(ending)) {
        return Ok(None);
    }
    let content = fs::read(root.join(path)).with_context(|| format!("cannot read {path}"))?;
    Ok(String::from_utf8(content).ok().filter(|text| !text.contains('\0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canary_bytes_and_generated_files_are_no_text() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("object"), b"\x7fELF\0\xff").expect("writes");
        fs::write(folder.path().join("built.so"), "text inside").expect("writes");
        fs::write(folder.path().join("notes.md"), "text").expect("writes");
        assert_eq!(read_text(folder.path(), "object").expect("reads"), None);
        assert_eq!(read_text(folder.path(), "built.so").expect("reads"), None);
        assert_eq!(read_text(folder.path(), "notes.md").expect("reads").as_deref(), Some("text"));
    }

    #[test]
    fn this_file_is_in_the_list() {
        let paths = list(shell::workspace()).expect("git lists");
        assert!(paths.iter().any(|path| path == "xtask/src/tidy/files.rs"));
    }
}
