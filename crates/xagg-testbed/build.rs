//! Compiles the fault program and generates its skeleton, both into `OUT_DIR`.

fn main() -> anyhow::Result<()> {
    println!("cargo::rerun-if-changed=src/bpf");
    #[cfg(feature = "faults")]
    build()?;
    Ok(())
}

#[cfg(feature = "faults")]
fn build() -> anyhow::Result<()> {
    use anyhow::Context;
    use libbpf_cargo::SkeletonBuilder;

    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").context("OUT_DIR is set by cargo")?);
    let target = std::env::var("CARGO_CFG_TARGET_ARCH")?;
    // Debian keeps the kernel's asm/ headers in a folder of the architecture, which clang does not search for the bpf target.
    let headers = format!("-I/usr/include/{target}-linux-gnu");
    SkeletonBuilder::new()
        .source("src/bpf/faults.bpf.c")
        .clang_args([headers.as_str(), "-Wall", "-Werror", "-mcpu=v3"])
        .build_and_generate(out.join("faults.skel.rs"))
        .context("building the fault program needs clang and the headers of libelf and zlib: run `cargo xtask test`, which installs them, or `apt-get install clang libelf-dev zlib1g-dev pkg-config`")
}
