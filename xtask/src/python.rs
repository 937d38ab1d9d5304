//! A Python environment of this checkout, with Debian's PyTorch and the `xagg` package built from the tree.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::profile::Profile;
use crate::shell;

/// The interpreter that Debian's python3-torch belongs to; another `python3` may come first in PATH.
const SYSTEM_PYTHON: &str = "/usr/bin/python3";
const TOOLS: &[&str] = &["maturin==1.16.0", "pytest==9.2.0"];

/// A virtual environment that has PyTorch and `xagg`.
pub struct Python {
    folder: PathBuf,
}

impl Python {
    /// Makes the environment where it is missing, and builds and installs the `xagg` package into it.
    ///
    /// # Errors
    /// When there is no PyTorch, or a tool or the package cannot be installed.
    pub fn prepare(profile: Profile) -> Result<Self> {
        let python = Self { folder: shell::target().join("python") };
        python.make_environment()?;
        python.install_wheel(profile)?;
        shell::read(python.command().args(["-c", "import torch, xagg.torch"]))
            .context("the package that was just built cannot be imported")?;
        Ok(python)
    }

    /// The environment's interpreter, ready for arguments.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.interpreter());
        // Without user site-packages: only what this program put there or Debian did.
        command.env("PYTHONNOUSERSITE", "1").current_dir(shell::workspace());
        command
    }

    /// The path of the environment's interpreter.
    pub fn interpreter(&self) -> PathBuf {
        self.folder.join("bin/python")
    }

    fn make_environment(&self) -> Result<()> {
        shell::read(Command::new(SYSTEM_PYTHON).args(["-c", "import torch"])).with_context(|| {
            format!("{SYSTEM_PYTHON} has no working PyTorch: install Debian's package python3-torch")
        })?;
        if !self.interpreter().exists() {
            let folder = self.folder.as_os_str();
            let arguments: [&OsStr; 4] =
                ["-m".as_ref(), "venv".as_ref(), "--system-site-packages".as_ref(), folder];
            shell::run(Command::new(SYSTEM_PYTHON).args(arguments))?;
        }
        // Quick, and without the network, once the versions are there.
        shell::run(self.pip_install().args(TOOLS)).context("cannot install the Python tools")
    }

    fn install_wheel(&self, profile: Profile) -> Result<()> {
        let wheels = self.folder.join("wheels");
        if wheels.exists() {
            fs::remove_dir_all(&wheels).with_context(|| format!("cannot empty {}", wheels.display()))?;
        }
        let mut maturin = self.command();
        maturin.args(["-m", "maturin", "build", "--quiet", "--auditwheel", "skip", "--manifest-path"]);
        maturin.arg("bindings/python/Cargo.toml").arg("--out").arg(&wheels);
        maturin.arg("--interpreter").arg(self.interpreter());
        maturin.args(profile.cargo_arguments());
        shell::read(&mut maturin).context("cannot build the Python package")?;
        let wheel = only_file(&wheels)?;
        shell::run(self.pip_install().args(["--force-reinstall", "--no-deps"]).arg(wheel))
            .context("cannot install the Python package")
    }

    fn pip_install(&self) -> Command {
        let mut command = self.command();
        command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        command
    }
}

fn only_file(folder: &Path) -> Result<PathBuf> {
    let entries: Vec<_> = fs::read_dir(folder)?.collect::<std::io::Result<_>>()?;
    match entries.as_slice() {
        [entry] => Ok(entry.path()),
        _ => bail!("expected one wheel in {}, found {}", folder.display(), entries.len()),
    }
}
