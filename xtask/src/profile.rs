//! How things are compiled.

use std::path::PathBuf;

use anyhow::Result;

use crate::shell;

/// How the `xagg` binary and the Python package are compiled.
#[derive(Clone, Copy)]
pub enum Profile {
    /// With the checks of a debug build; shares what `cargo test` has built.
    Dev,
    /// As a user gets it.
    Release,
}

impl Profile {
    /// What cargo, or maturin, is told.
    pub const fn cargo_arguments(self) -> &'static [&'static str] {
        match self {
            Self::Dev => &[],
            Self::Release => &["--release"],
        }
    }

    /// Builds the `xagg` binary and returns its path.
    ///
    /// # Errors
    /// When it does not compile.
    pub fn build_xagg(self) -> Result<PathBuf> {
        let mut build = shell::cargo(&["build", "--quiet", "--package", "xagg-cli"]);
        shell::run(build.args(self.cargo_arguments()))?;
        let folder = match self {
            Self::Dev => "debug",
            Self::Release => "release",
        };
        Ok(shell::target().join(folder).join("xagg"))
    }
}
