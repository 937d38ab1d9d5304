//! `cargo xtask tidy`: style as a test. Every rule has a canary: a sample that it must flag.

mod files;
mod length;
mod promises;
mod text;

use std::fmt;

use anyhow::{Result, bail};

use crate::shell;

/// One place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    path: String,
    /// From 1; 0 means the file as a whole.
    line: usize,
    problem: String,
}

impl Finding {
    fn new(path: &str, line: usize, problem: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, problem: problem.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(out, "{}: {}", self.path, self.problem),
            line => write!(out, "{}:{line}: {}", self.path, self.problem),
        }
    }
}

/// Checks every file of the tree.
///
/// # Errors
/// When something breaks a rule; each place has been printed.
pub fn run() -> Result<()> {
    let root = shell::workspace();
    let mut findings = Vec::new();
    let paths = files::list(root)?;
    for path in &paths {
        match files::read_text(root, path)? {
            Some(content) => {
                findings.extend(text::check(path, &content));
                findings.extend(length::check(path, &content));
            }
            None => findings.push(Finding::new(path, 0, "not a text file: generate it when building")),
        }
    }
    findings.extend(promises::check(root));
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} places break a rule of CONTRIBUTING.md", findings.len());
    }
    println!("{} files are tidy", paths.len());
    Ok(())
}
