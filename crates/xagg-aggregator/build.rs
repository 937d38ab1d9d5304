//! Compiles the kernel program and generates its skeleton, both into `OUT_DIR`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<()> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").context("OUT_DIR is set by cargo")?);
    println!("cargo::rerun-if-changed=src/bpf");
    build(&out.join("xagg.skel.rs"), &[])?;
    build(&out.join("xagg_test.skel.rs"), &["-DXAGG_TEST"])
}

fn build(skeleton: &Path, definitions: &[&str]) -> Result<()> {
    let target = std::env::var("CARGO_CFG_TARGET_ARCH")?;
    // Debian keeps the kernel's asm/ headers in a folder of the architecture, which clang does not search for the bpf target.
    let headers = format!("-I/usr/include/{target}-linux-gnu");
    SkeletonBuilder::new()
        .source("src/bpf/xagg.bpf.c")
        .clang_args([headers.as_str(), "-Wall", "-Werror", "-mcpu=v3"].iter().chain(definitions))
        .build_and_generate(skeleton)
        .context("building the kernel program needs clang and the headers of libelf and zlib: run `cargo xtask test`, which installs them, or `apt-get install clang libelf-dev zlib1g-dev pkg-config`")
}
